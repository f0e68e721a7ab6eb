#!/usr/bin/env python3
"""Write the generated documentation: the pages of docs/ and licenses/, and the marked blocks of README.md."""

import argparse
from pathlib import Path

from inference_kernels.cli import report_differences, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument("--check", action="store_true", help="change nothing; exit 1 if a document is out of date")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.pages import build

    if options.check:
        return report_differences(build.document_differences(options.root))
    for path in build.write_documents(options.root):
        print(path.relative_to(options.root))
    return 0


if __name__ == "__main__":
    run_main(main)
