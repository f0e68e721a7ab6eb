#!/usr/bin/env python3
"""Measure throughput and memory of check_workload_inputs.py against a bare hashlib loop over the same files."""

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from generated_tree import REPOSITORY, dataset_tree


def bare_hash(path: Path) -> str:
    """Read and hash a file, nothing else: the yardstick."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def bare_loop(files: list[Path]) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(bare_hash, files))
    return time.perf_counter() - started


def run_check(root: Path) -> float:
    command = [sys.executable, str(REPOSITORY / "scripts" / "check_workload_inputs.py"), "--root", str(root)]
    started = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"error: the check failed: {result.stdout[-500:]} {result.stderr[-500:]}")
    return time.perf_counter() - started


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--bytes", type=float, default=10e9, help="size of the tree (default: 10e9)")
    result.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="where the tree is built")
    result.add_argument("--repeat", type=int, default=3, help="runs of each; the median counts (default: 3)")
    return result


def main() -> None:
    options = parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-check-", dir=options.scratch))
    try:
        count = dataset_tree(folder / "root", int(options.bytes))
        files = sorted((folder / "root" / "blob").rglob("*.safetensors"))
        total = sum(path.stat().st_size for path in files)
        bare_loop(files)
        pairs = [(bare_loop(files), run_check(folder / "root")) for _ in range(options.repeat)]
    finally:
        shutil.rmtree(folder)
    bare, check = (sorted(column)[len(column) // 2] for column in zip(*pairs))
    print(
        json.dumps(
            {
                "benchmark": "check",
                "files": count,
                "bytes": total,
                "workers": os.cpu_count(),
                "bare_seconds": round(bare, 2),
                "check_seconds": round(check, 2),
                "share_of_bare_throughput": round(bare / check, 3),
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
