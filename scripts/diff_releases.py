#!/usr/bin/env python3
"""Compare two releases: definitions, tolerances, solutions, workloads, hashes, shapes.

A release is the root of a dataset or, with --git, a revision of this repository, read without a checkout.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.release import diff

COLUMNS = ["kind", "definition", "added", "removed", "changed", "details"]
DETAIL_LIMIT = 120


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("releases", nargs="*", metavar="ROOT", help="two dataset roots: the old one, the new one")
    result.add_argument("--git", nargs=2, metavar=("OLD", "NEW"), help="two revisions instead")
    result.add_argument(
        "--repository", type=Path, default=REPOSITORY, help="git repository of --git (default: this one)"
    )
    result.add_argument("--json", type=Path, metavar="FILE", help="write every single difference to FILE")
    return result


def main() -> int:
    arguments = parser()
    options = arguments.parse_args()
    names = options.git or options.releases
    if len(names) != 2 or (options.git and options.releases):
        arguments.error("pass two dataset roots, or --git OLD NEW")
    from inference_kernels.core import files

    old, new = (
        diff.read_release(
            diff.from_git(options.repository, name) if options.git else diff.from_folder(Path(name)), name
        )
        for name in names
    )
    changes = diff.compare_releases(old, new)
    if changes:
        print_table(table_rows(changes), COLUMNS)
    else:
        print("no difference")
    result = {
        "old": names[0],
        "new": names[1],
        "classes": [diff.class_counts(item) for item in (old, new)],
        "differences": len(changes),
    } | diff.counts(changes)
    if options.json:
        files.write_json(options.json, result | {"changes": [change.to_json() for change in changes]})
    print_json(result)
    return 0


def table_rows(changes: list[Any]) -> list[dict[str, Any]]:
    """Make one row per kind and definition, with the details that fit."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for change in changes:
        groups.setdefault((change.kind, change.definition), []).append(change)
    rows = []
    for (kind, definition), group in groups.items():
        numbers = Counter(change.change for change in group)
        details = list(dict.fromkeys(describe(change) for change in group))
        text = "; ".join(filter(None, details))
        rows.append(
            {
                "kind": kind,
                "definition": definition,
                **{key: numbers[key] for key in ("added", "removed", "changed")},
                "details": text if len(text) <= DETAIL_LIMIT else text[: DETAIL_LIMIT - 4] + " ...",
            }
        )
    return rows


def describe(change: Any) -> str:
    """Describe a change as briefly as the table needs: hashes and UUIDs are in the JSON file."""
    if change.kind in ("tensor", "workload", "record"):
        return change.detail if change.change == "changed" else ""
    sign = {"added": "+", "removed": "-", "changed": ""}[change.change]
    return " ".join(filter(None, [f"{sign}{change.name}" if change.name else "", change.detail]))


if __name__ == "__main__":
    run_main(main)
