#!/usr/bin/env python3
"""Copy the readable sources into the native JSON files; with --check only say which are out of step."""

import argparse
from pathlib import Path

from inference_kernels.cli import fail, run_main
from inference_kernels.core import pack
from inference_kernels.core.layout import REPOSITORY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of step")
    options = parser.parse_args()
    if options.check:
        differences = pack.out_of_sync(options.root)
        for difference in differences:
            fail(difference.line())
        return 1 if differences else 0
    for path in pack.pack(options.root):
        print(path.relative_to(options.root))
    return 0


if __name__ == "__main__":
    run_main(main)
