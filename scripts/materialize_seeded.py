#!/usr/bin/env python3
"""Write the seeded weights that are too large for git into blob/generated/, bit for bit, and verify them."""

import argparse
from pathlib import Path

from inference_kernels.cli import print_json, progress, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    add = result.add_argument
    add("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    help_run = "complete a capture run that was copied without them, instead of a dataset"
    add("--run", type=Path, metavar="RUN", help=help_run)
    add("--definition", metavar="NAME", help="only what this definition reads")
    add("--all", action="store_true", help="also the expert banks of several GB (default: tensors up to 1 GiB)")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.seeded import materialize

    root = options.run or options.root
    files = (
        materialize.run_generated_files(root) if options.run else materialize.generated_files(root, options.definition)
    )
    small = [item for item in files if options.all or item.recipe.nbytes <= materialize.SIZE_LIMIT]
    done = progress(materialize.materialize(root, small), len(small), "materialize")
    written = sum(new for _, new in done)
    print_json(
        {
            "written": written,
            "present": len(small) - written,
            "skipped_by_size": len(files) - len(small),
            "bytes": sum(item.recipe.nbytes for item in small),
        }
    )
    return 0


if __name__ == "__main__":
    run_main(main)
