#!/usr/bin/env python3
"""Measure the tools on growing trees, beside a bare hashlib loop, sha256sum and flashinfer-bench.

Two trees (generated_release.py): `holes` has the published dataset's counts, 146 GB of sparse files; `bytes`
has 20 GB of written bytes. Each grows through the shares of --share. Time and memory go into one JSON file as
they are taken, beside the figures of earlier runs; docs/performance.md is made of it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generated_release import BANKS, Tree, allocated_bytes
from generated_tree import REPOSITORY
from inference_kernels.core.files import read_object, write_json

SUMMARY = REPOSITORY / "results" / "summaries" / "tool_at_size.json"
WORKERS = os.cpu_count() or 1
# Rows for 20 GB in the largest `bytes` tree, which has no expert banks.
TREES = {"holes": {"rows": 1.0}, "bytes": {"rows": 0.141, "without": BANKS}}
BARE = """
import sys
from pathlib import Path
from bench_check import bare_loop
bare_loop(sorted(Path(sys.argv[1], "blob").rglob("*.safetensors")))
"""
NATIVE = """
import sys
from pathlib import Path
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.data import TraceSet
root = Path(sys.argv[1])
traces = TraceSet.from_path(str(root))
for name, rows in traces.workloads.items():
    for row in rows:
        load_safetensors(traces.definitions[name], row.workload, root)
"""
SHA256SUM = f'find "$1/blob" -type f -print0 | xargs -0 -n 8 -P {WORKERS} sha256sum > /dev/null'


def measure(command: list[str]) -> dict[str, float]:
    """Measure wall time, processor time and peak memory of a command and its children; it must succeed."""
    load, started = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, cwd=REPOSITORY / "benchmarks")
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        if child.returncode:
            output.seek(0)
            text = output.read()[-800:].decode()
            sys.exit(f"error: {' '.join(command)[:300]} gave {child.returncode}: {text}")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": usage.ru_maxrss // 1024,
        "load_before": round(load, 1),
    }


def script(name: str, *arguments: Any) -> list[str]:
    return [sys.executable, str(REPOSITORY / "scripts" / name), *map(str, arguments)]


def tools(root: Path, old: Path, clone: Path) -> dict[str, list[str]]:
    """List the commands by name. old: the first half of the records; clone: all of them, tensors as pointers."""
    return {
        "check": script("check_workload_inputs.py", "--root", root),
        "bare hashlib loop": [sys.executable, "-c", BARE, str(root)],
        "sha256sum": ["sh", "-c", SHA256SUM, "sh", str(root)],
        "flashinfer-bench loader": [sys.executable, "-c", NATIVE, str(root)],
        "check of pointers": script("check_workload_inputs.py", "--root", clone),
        "plot": script("plot_shape_distributions.py", "--root", root),
        "explorer": script("build_explorer.py", "--root", root),
        "diff": script("diff_releases.py", old, root),
        "pull plan": script("sync_hub.py", "pull", "--root", clone, "--dry-run"),
        "pull plan within 1 GB": script("sync_hub.py", "pull", "--root", clone, "--dry-run", "--max-bytes", 10**9),
        "publish plan": script("sync_hub.py", "publish", "--root", clone, "--dry-run"),
    }


def grow(folder: Path, fill: str, shares: list[float], options: argparse.Namespace) -> int:
    """Measure the tree at each share; a larger one extends the smaller. Return the number of measurements."""
    shape, count = TREES[fill] | {"rows": TREES[fill]["rows"] * options.rows}, 0
    for share in sorted(shares):
        root, old, clone = folder / "root", folder / f"old-{share}", folder / f"clone-{share}"
        Tree(root, share, fill=fill, **shape).write()
        Tree(old, share / 2, fill="pointers", **shape).write()
        Tree(clone, share, fill="pointers", **shape).write()
        (clone / "README.md").write_text("# Benchmark\n")
        row = describe(root) | {"tree": fill, "share": share}
        if row["bytes"] < memory_bytes():
            # Warm up the page cache, which the first reader of a file fills.
            measure([sys.executable, "-c", BARE, str(root)])
        for name, command in tools(root, old, clone).items():
            if name in (options.tool or [name]):
                record(options.output, row, name, measure(command))
                count += 1
    return count


def describe(root: Path) -> dict[str, Any]:
    files = [path.stat().st_size for path in (root / "blob").rglob("*.safetensors")]
    return {
        "workloads": (root / "captures.jsonl").read_bytes().count(b"\n"),
        "paths": len(files),
        "bytes": sum(files),
        "disk_bytes": allocated_bytes(root),
    }


def record(output: Path, row: dict[str, Any], name: str, figures: dict[str, float]) -> None:
    """Write the figures of one tool into the file, replacing older ones of the same tool and tree."""
    found = read_object(output) if output.exists() else {}
    rows = {(item["tree"], item["share"]): item for item in found.get("trees", [])}
    key = row["tree"], row["share"]
    rows[key] = row | {"tools": rows.get(key, {}).get("tools", {}) | {name: figures}}
    write_json(output, found | {"machine": machine(), "trees": [rows[key] for key in sorted(rows)]})


def machine() -> dict[str, Any]:
    """Describe what the figures depend on; the processor by its name in Linux, elsewhere by its architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": WORKERS,
        "memory_gb": round(memory_bytes() / 1e9),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, names = result.add_argument, list(tools(Path(), Path(), Path()))
    add("--tree", action="append", choices=TREES, help="tree to grow; repeatable (default: both)")
    add(
        "--share", action="append", type=float, metavar="X", help="of the workloads; repeatable (default: 0.25, 0.5, 1)"
    )
    add("--tool", action="append", choices=names, help="measure this only; repeatable (default: all)")
    add("--rows", type=float, default=1.0, metavar="X", help="scale the tensors (default: 1)")
    add_folders(add, "the figures")
    return result


def add_folders(add: Callable[..., Any], what: str) -> None:
    """Add --scratch and --output, the options of every benchmark that writes to SUMMARY."""
    scratch = Path(tempfile.gettempdir())
    add("--scratch", type=Path, default=scratch, metavar="DIR", help=f"where the trees are built (default: {scratch})")
    add("--output", type=Path, default=SUMMARY, metavar="FILE", help=f"{what} (default: {SUMMARY.name})")


def main() -> None:
    options = parser().parse_args()
    count = 0
    for fill in options.tree or TREES:
        with tempfile.TemporaryDirectory(prefix="bench-at-size-", dir=options.scratch) as folder:
            count += grow(Path(folder), fill, options.share or [0.25, 0.5, 1.0], options)
    print(json.dumps({"benchmark": "at_size", "measurements": count, "output": options.output.name}))


if __name__ == "__main__":
    main()
