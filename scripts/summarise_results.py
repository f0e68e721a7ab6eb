#!/usr/bin/env python3
"""Summarise benchmark reports in a row per definition, solution and kind of data."""

import argparse
from pathlib import Path

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument(
        "reports",
        nargs="+",
        type=labelled,
        metavar="LABEL=PATH",
        help="report of benchmark_solutions.py, or folder of them, with the name of its data: starter, large",
    )
    result.add_argument(
        "--output", type=Path, metavar="FILE", help="JSON lines (default: the summary that the documents cite)"
    )
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core.files import json_line, write_text
    from inference_kernels.pages.baselines import HEADER, SUMMARY, cells, summarise

    output = options.output or REPOSITORY / SUMMARY
    rows = summarise(options.reports)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, "".join(json_line(row) + "\n" for row in rows))
    columns = ["definition", *HEADER]
    print_table([dict(zip(columns, [row["definition"], *cells(row)])) for row in rows], columns)
    print_json(
        {
            "summary": str(output),
            "rows": len(rows),
            "passed": sum(row["passed"] for row in rows),
            "workloads": sum(row["workloads"] for row in rows),
        }
    )
    return 0


def labelled(text: str) -> tuple[str, Path]:
    """Parse LABEL=PATH."""
    label, found, path = text.partition("=")
    if not found or not label or not path:
        raise argparse.ArgumentTypeError(f"expected LABEL=PATH, found {text!r}")
    return label, Path(path)


if __name__ == "__main__":
    run_main(main)
