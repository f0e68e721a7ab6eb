#!/usr/bin/env python3
"""Write agentx_shapes.json: lengths, outputs and block ids of the requests that text-model captures replay.

With --trace the requests are chosen from the AgentX trace, whose size and SHA-256 are checked first; the same
trace gives the same bytes. With --published the file holds what is known without the trace: figures, and
block ids made up to fit the published lengths and cache hits, labelled `reconstructed`.
"""

import argparse
import re
from pathlib import Path

from inference_kernels.cli import print_json, print_table, progress, run_main

COLUMNS = ["case", "provenance", "requests", "input", "output", "shared blocks", "candidates", "as published"]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    source = result.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="Weka trace: sessions as lines, or one session in a .json file"
    )
    source.add_argument("--published", action="store_true", help="write what is known without the trace")
    result.add_argument("--dataset", metavar="NAME", help="name of another trace than the pinned one")
    result.add_argument("--trace-revision", metavar="SHA", help="commit of another trace than the pinned one")
    result.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: agentx_shapes.json of this repository)"
    )
    return result


def main() -> int:
    arguments = parser()
    options = arguments.parse_args()
    revision = options.trace_revision
    if revision is not None and not re.fullmatch("[0-9a-f]{40}", revision):
        arguments.error(f"--trace-revision {revision!r}: write the 40 hexadecimal digits of a commit")
    if options.published and (revision or options.dataset):
        arguments.error("--dataset and --trace-revision belong to --trace")
    from inference_kernels.agentx.corpus import SelectedCases, identify, select_from
    from inference_kernels.agentx.published import published_shapes
    from inference_kernels.agentx.shapes import SHAPES, write_shapes

    if options.published:
        selection = SelectedCases(published_shapes(), [], [])
    else:
        corpus = identify(options.trace, options.dataset, revision)
        if not corpus.pinned and options.output is None:
            arguments.error(f"--output is needed for another trace: {SHAPES.name} is AgentX's")
        selection = select_from(corpus, progress)
    output = options.output or SHAPES
    write_shapes(output, selection.shapes)
    report(selection, output)
    return 0


def report(selection, output: Path) -> None:
    """Print the cases, the notes and one JSON line."""
    shapes = selection.shapes
    print_table([row(entry) for entry in shapes["cases"]], COLUMNS)
    for name in selection.empty:
        print(f"note {name}: no request fits")
    for difference in selection.differences:
        print(f"note {difference}")
    print_json(
        {
            "output": str(output),
            "dataset": shapes["trace"]["dataset"],
            "revision": shapes["trace"]["revision"],
            "requests": shapes["population"]["requests"],
            "cases": len(shapes["cases"]),
            "without_request": len(selection.empty),
            "differences": len(selection.differences),
        }
    )


def row(entry: dict) -> dict:
    """Make one row of the table; lengths of a group as smallest-largest."""
    shown = {
        "case": entry["name"],
        "provenance": entry["provenance"],
        "requests": len(entry["requests"]) or None,
        "shared blocks": entry["shared_prefix_blocks"],
        "candidates": entry.get("candidates"),
        "as published": {True: "yes", False: "NO", None: None}[entry["matched_published"]],
    }
    for column in ("input", "output"):
        values = sorted(request[f"{column}_tokens"] for request in entry["requests"])
        values = values or entry["published"].get(f"{column}_tokens", [])
        shown[column] = "-".join(f"{value:,}" for value in dict.fromkeys(values[:1] + values[-1:]))
    return {column: "" if value is None else value for column, value in shown.items()}


if __name__ == "__main__":
    run_main(main)
