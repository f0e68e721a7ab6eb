#!/usr/bin/env python3
"""Reduce a full capture to the curated set: say what the rules drop and why, and with --apply drop it.

Rules: retired definitions are dropped with all that belongs to them; dense GEMM workloads with M < 4096 only
in class `published`, seeded captures keep their small rows; mask inputs are dropped if recorded as visible
everywhere and refused otherwise; records and tensors that nothing needs are dropped. If the command is
stopped, run it again.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.core.layout import REPOSITORY

COLUMNS = ["dropped", "definition", "count", "bytes", "reason"]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, required=True, help="root of the full capture")
    result.add_argument("--json", type=Path, metavar="FILE", help="write every single drop to FILE")
    mode = result.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print the plan, change nothing (the default)")
    mode.add_argument("--apply", action="store_true", help="change the tree")
    result.add_argument(
        "--yes", action="store_true", help="apply also a plan that drops over half the records or tensors"
    )
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core import files
    from inference_kernels.release import curation

    reasons = curation.retired_reasons(REPOSITORY) | curation.retired_reasons(options.root)
    plan = curation.make_plan(options.root, reasons)
    if plan.empty:
        print("nothing to drop")
    else:
        print_table(plan_rows(plan), COLUMNS)
    for old, new in plan.masks.items():
        print(f"mask dropped: workload {old} becomes {new}")
    for path in plan.tasks:
        print(f"dev list shortened: {path.name}; choose again: python scripts/check_tasks.py --choose-dev")
    if options.json:
        files.write_json(options.json, plan.to_json())
    if options.apply:
        if not options.yes:
            curation.refuse_large(plan)
        curation.apply(plan)
    print_json(plan.summary() | {"applied": options.apply})
    return 0


def plan_rows(plan: Any) -> list[dict[str, Any]]:
    """Make one row per kind, definition and reason."""
    groups = Counter((item.kind, item.definition, item.reason) for item in plan.dropped)
    sizes: Counter = Counter()
    for item in plan.dropped:
        sizes[item.kind, item.definition, item.reason] += item.bytes
    return [
        {
            "dropped": kind,
            "definition": name,
            "count": count,
            "bytes": sizes[kind, name, reason] or "",
            "reason": reason,
        }
        for (kind, name, reason), count in groups.items()
    ]


if __name__ == "__main__":
    run_main(main)
