#!/usr/bin/env python3
"""Measure the throughput of an import against `cp` and a hashlib loop over the copy, both ended by sync."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_check import bare_loop
from generated_tree import REPOSITORY, capture_run, copy_contracts


def copy_and_hash(run: Path, target: Path) -> float:
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(run / "blob"), str(target)], check=True)
    subprocess.run(["sync", str(target)], check=True)
    os.sync()
    bare_loop(sorted(target.rglob("*.safetensors")))
    return time.perf_counter() - started


def run_import(run: Path, root: Path) -> float:
    copy_contracts(root)
    command = [
        sys.executable,
        str(REPOSITORY / "scripts" / "capture_inputs.py"),
        "--import-capture",
        str(run),
        "--output-root",
        str(root),
    ]
    started = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True)
    os.sync()
    if result.returncode:
        sys.exit(f"error: the import failed: {result.stderr[-500:]}")
    return time.perf_counter() - started


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--bytes", type=float, default=2e9, help="size of the run (default: 2e9)")
    result.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="where it is built")
    result.add_argument("--repeat", type=int, default=3, help="runs of each; the median counts (default: 3)")
    return result


def main() -> None:
    options = parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-import-", dir=options.scratch))
    try:
        count = capture_run(folder / "run", int(options.bytes))
        total = sum(path.stat().st_size for path in (folder / "run" / "blob").rglob("*.safetensors"))
        pairs = []
        for _ in range(options.repeat):
            pairs.append((copy_and_hash(folder / "run", folder / "copy"), run_import(folder / "run", folder / "root")))
            shutil.rmtree(folder / "copy")
            shutil.rmtree(folder / "root")
    finally:
        shutil.rmtree(folder)
    plain, imported = (sorted(column)[len(column) // 2] for column in zip(*pairs))
    print(
        json.dumps(
            {
                "benchmark": "import",
                "files": count,
                "bytes": total,
                "cp_and_sha256_seconds": round(plain, 2),
                "import_seconds": round(imported, 2),
                "share_of_throughput": round(plain / imported, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
