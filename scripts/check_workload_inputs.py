#!/usr/bin/env python3
"""Check a dataset: schemas, packed references, every tensor's shape, dtype and hash, mappings, constraints, records.

Needs no GPU. Prints every finding as `level where: expected; found; remedy`, then one JSON line; exits 1 on errors.
"""

import argparse
import os
from pathlib import Path

from inference_kernels.cli import print_json, progress, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument("--definition", metavar="NAME", help="check this definition only")
    result.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="files hashed at a time (default: one per core)"
    )
    result.add_argument("--json", type=Path, metavar="FILE", help="also write the summary and all findings here")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.check import dataset
    from inference_kernels.core.files import write_json

    state = dataset.check_root(options.root, options.definition, max(options.jobs, 1), progress)
    for finding in state.findings.items:
        print(finding.line())
    result = dataset.summary(state)
    if options.json:
        write_json(options.json, result | {"findings": state.findings.to_json()})
    print_json(result)
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    run_main(main)
