#!/usr/bin/env python3
"""Copy the readable sources into the native JSON files; with --check only list those that differ."""

import argparse
from pathlib import Path

from inference_kernels.cli import report_differences, run_main
from inference_kernels.core import pack
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file differs")
    return result


def main() -> int:
    options = parser().parse_args()
    if options.check:
        return report_differences(pack.out_of_sync(options.root))
    for path in pack.pack(options.root):
        print(path.relative_to(options.root))
    return 0


if __name__ == "__main__":
    run_main(main)
