#!/usr/bin/env python3
"""Write docs/figures: workloads by exact shape, tolerance used by outputs, ranges of inputs, the roofline.

Reads definitions, workloads, capture records and the summary of the baselines; needs no GPU, tensor files or
torch, but Matplotlib (requirements/plot.txt). Prints the changed files.
"""

import argparse
from pathlib import Path

from inference_kernels.cli import report_differences, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of the figures (default: docs/figures of the root)"
    )
    result.add_argument("--definition", metavar="NAME", help="only the shapes of this definition")
    result.add_argument("--check", action="store_true", help="change nothing; exit 1 if a figure is out of date")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core.definitions import require_dataset
    from inference_kernels.pages.figures import write
    from inference_kernels.pages.figures.canvas import require_matplotlib

    require_matplotlib(exact=options.check)
    require_dataset(options.root)
    output = options.output or options.root / "docs" / "figures"
    if options.check:
        return report_differences(write.figure_differences(options.root, output, options.definition))
    for path in write.write_figures(options.root, output, options.definition):
        print(path)
    return 0


if __name__ == "__main__":
    run_main(main)
