#!/usr/bin/env python3
"""Write the explorer: one HTML file to browse definitions, workloads, solutions and results, offline.

Reads definitions, tasks, workloads, capture records, solutions, figures and the results of the baselines; needs
no GPU, tensor files or torch, but Pygments (requirements/plot.txt). Prints the path.
"""

import argparse
from pathlib import Path

from inference_kernels.cli import report_differences, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (default: results/explorer.html of the root)"
    )
    result.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core.definitions import require_dataset
    from inference_kernels.pages.explorer import page
    from inference_kernels.pages.explorer.code import require_pygments

    require_pygments()
    require_dataset(options.root)
    output = options.output or options.root / page.PAGE
    if options.check:
        return report_differences(page.page_differences(options.root, output))
    page.write_page(options.root, output)
    print(output)
    return 0


if __name__ == "__main__":
    run_main(main)
