#!/usr/bin/env python3
"""Measure select_agentx_requests.py against a bare orjson.loads pass over the same bytes.

The trace consists of real Weka sessions, repeated under new session ids, with renumbered block ids and with
one prefix before all prompts of a session, which brings them to the mean length of AgentX (3,421 blocks). The
script reads it a second time for its time base, which it would not do with the pinned trace. orjson is only
the yardstick: `pip install orjson`.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SELECT = [
    sys.executable,
    str(REPOSITORY / "scripts" / "select_agentx_requests.py"),
    "--dataset",
    "benchmark",
    "--trace-revision",
    "0" * 40,
]
BARE = (
    "import sys, orjson\n"
    "with open(sys.argv[1], 'rb', buffering=2**20) as stream:\n"
    "    for line in stream:\n"
    "        orjson.loads(line)\n"
)
# Block ids of a long session have five or six digits.
OFFSETS = (1, 9_000, 90_000, 400_000)
MEAN_BLOCKS = 3_421
PLACE = b'"id":"@"'


def renumbered(requests: list[dict], offset: int, prefix: int) -> list[dict]:
    front = list(range(offset, offset + prefix))
    return [
        item
        | (
            {"requests": renumbered(item["requests"], offset, prefix)}
            if item["type"] == "subagent"
            else {"hash_ids": front + [ident + offset + prefix for ident in item["hash_ids"]]}
        )
        for item in requests
    ]


def mean_blocks(sources: list[dict]) -> int:
    requests = [
        request for source in sources for item in source["requests"] for request in item.get("requests", [item])
    ]
    return sum(len(request["hash_ids"]) for request in requests) // len(requests)


def write_trace(path: Path, folder: Path, size: int) -> None:
    """Write sessions until the file has `size` bytes."""
    sources = [json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))]
    sources = [source for source in sources if source.get("hash_id_scope") == "local"]
    prefix = MEAN_BLOCKS - mean_blocks(sources)
    lines = [
        json.dumps(
            source | {"id": "@", "requests": renumbered(source["requests"], offset, prefix)}, separators=(",", ":")
        ).encode()
        + b"\n"
        for source in sources
        for offset in OFFSETS
    ]
    count = 0
    with open(path, "wb") as stream:
        while stream.tell() < size:
            stream.write(lines[count % len(lines)].replace(PLACE, b'"id":"%08d"' % count, 1))
            count += 1


def measured(command: list[str]) -> tuple[float, int]:
    """Run one process; return its seconds and its peak memory in MB."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"error: {command[1]} failed")
    return time.perf_counter() - started, usage.ru_maxrss // 1024


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument(
        "--traces",
        type=Path,
        default=REPOSITORY / "tests" / "data" / "weka",
        help="folder of Weka sessions (default: those of the tests)",
    )
    result.add_argument("--bytes", type=float, default=1.847e9, help="size of the trace (default: 1.847e9)")
    result.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="where the trace is built")
    result.add_argument("--repeat", type=int, default=3, help="runs of each; the median counts (default: 3)")
    return result


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-agentx-", dir=options.scratch) as scratch:
        trace, output = Path(scratch, "traces.jsonl"), Path(scratch, "shapes.json")
        # In a process of its own, because children inherit the peak memory of the process that starts them.
        writer = multiprocessing.Process(target=write_trace, args=(trace, options.traces, int(options.bytes)))
        writer.start()
        writer.join()
        total = trace.stat().st_size
        bare = [measured([sys.executable, "-c", BARE, str(trace)]) for _ in range(options.repeat)]
        ours = [measured([*SELECT, "--trace", str(trace), "--output", str(output)]) for _ in range(options.repeat)]
        population = json.loads(output.read_bytes())["population"]
    bare_s, ours_s = (sorted(seconds for seconds, _ in runs)[len(runs) // 2] for runs in (bare, ours))
    print(
        json.dumps(
            {
                "benchmark": "agentx",
                "bytes": total,
                "sessions": population["sessions"],
                "requests": population["requests"],
                "orjson_seconds": round(bare_s, 2),
                "select_seconds": round(ours_s, 2),
                "share_of_orjson_speed": round(bare_s / ours_s, 2),
                "orjson_peak_mb": max(peak for _, peak in bare),
                "select_peak_mb": max(peak for _, peak in ours),
            }
        )
    )


if __name__ == "__main__":
    main()
