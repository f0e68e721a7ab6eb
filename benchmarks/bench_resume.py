#!/usr/bin/env python3
"""Stop the commands that write (import, materialise) and the check by SIGINT and SIGKILL, and run them again.

Each run resumes where the last one was stopped, until one ends by itself; the tree must then equal that of an
undisturbed run byte for byte, without leftovers. Adds `resume` to the file of bench_at_size.py.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_at_size import add_folders, script
from generated_tree import REPOSITORY, capture_run, copy_contracts
from inference_kernels.core.files import LEFTOVER, read_object, write_json
from inference_kernels.core.hashing import sha256_file

SIGNALS = (signal.SIGINT, signal.SIGKILL)
RECORDS = ("definitions", "tasks", "workloads", "captures.jsonl")


def tree_hashes(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in sorted(root.rglob("*")) if path.is_file()}


def run(command: list[str], stop_after: float | None = None, number: int = 0) -> tuple[float, int]:
    """Run a command, stopped by a signal after `stop_after` seconds if given; return (seconds, exit code).

    A command that SIGINT stops must write exactly one line of errors.
    """
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            code = child.wait(stop_after)
        except subprocess.TimeoutExpired:
            child.send_signal(number)
            code = child.wait()
        errors.seek(0)
        lines = errors.read().splitlines()
    allowed = {0, -signal.SIGKILL, 130, -signal.SIGINT} if stop_after else {0}
    if code not in allowed or (code == 130 and len(lines) != 1):
        sys.exit(f"error: {command} gave {code}: {lines[-3:]}")
    return time.perf_counter() - started, code


def stopped_runs(command: list[str], whole: float, stops: int) -> list[int]:
    """Collect the exit codes of runs stopped ever later, alternately by SIGINT and SIGKILL, and of a last whole one."""
    times = [whole * ((place + 1) / (stops + 1)) ** 2 for place in range(stops)]
    codes = [run(command, seconds, SIGNALS[place % 2])[1] for place, seconds in enumerate(times)]
    return [*codes, run(command)[1]]


def trial(
    name: str, command_of: Callable[[Path], list[str]], fresh: Callable[[Path], None], folder: Path, stops: int
) -> dict:
    """Compare a stopped tree with an undisturbed one. fresh: writes the tree that a command starts from."""
    whole, stopped = folder / f"{name}-whole", folder / f"{name}-stopped"
    for root in (whole, stopped):
        fresh(root)
    seconds = run(command_of(whole))[0]
    codes = stopped_runs(command_of(stopped), seconds, stops)
    hashes = tree_hashes(stopped)
    result = {
        "command": name,
        "seconds": round(seconds, 2),
        "exit_codes": codes,
        "files": len(hashes),
        "leftovers": sum(Path(text).name.startswith(LEFTOVER) for text in hashes),
        "identical": hashes == tree_hashes(whole),
    }
    for root in (whole, stopped):
        shutil.rmtree(root)
    return result


def copy_records(root: Path) -> None:
    root.mkdir()
    for name in RECORDS:
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, root / name)


def copy_starter(root: Path) -> None:
    copy_records(root)
    shutil.copytree(REPOSITORY / "blob" / "starter", root / "blob" / "starter")


def trials(folder: Path, size: int, stops: int) -> list[dict]:
    capture_run(folder / "run", size)
    return [
        trial(
            "import",
            lambda root: script("capture_inputs.py", "--import-capture", folder / "run", "--output-root", root),
            copy_contracts,
            folder,
            stops,
        ),
        trial("materialize", lambda root: script("materialize_seeded.py", "--root", root), copy_records, folder, stops),
        trial("check", lambda root: script("check_workload_inputs.py", "--root", root), copy_starter, folder, stops),
    ]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--bytes", type=float, default=2e9, help="size of the imported run (default: 2e9)")
    add("--stops", type=int, default=8, help="times each command is stopped (default: 8)")
    add_folders(add, "file to add to")
    return result


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-resume-", dir=options.scratch) as name:
        rows = trials(Path(name), int(options.bytes), options.stops)
    found = read_object(options.output) if options.output.exists() else {}
    write_json(options.output, found | {"resume": rows})
    print(json.dumps({"benchmark": "resume", "identical": all(row["identical"] for row in rows)}))


if __name__ == "__main__":
    main()
