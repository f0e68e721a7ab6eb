#!/usr/bin/env python3
"""Audit packaged solutions: complete call, unchanged inputs, eager call against prepared launch, notes."""

import argparse
from pathlib import Path

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.judge.options import add_options, chosen_workloads, judging


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    add_options(result)
    result.add_argument("--report", type=Path, required=True, metavar="FILE", help="JSON lines, one per workload")
    result.add_argument("--solution", metavar="NAME", help="this solution only")
    result.add_argument("--definition", metavar="NAME", help="solutions of this definition only")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core.definitions import load_definition
    from inference_kernels.core.solutions import find_solutions
    from inference_kernels.judge import audit, report

    solutions = find_solutions(options.root, options.solution, options.definition)
    report.start_report(options.report, resume=False)
    records = []
    with judging(options) as judge:
        for solution in solutions:
            definition = load_definition(options.root, str(solution.get("definition")))
            only = chosen_workloads(judge.task(definition["name"]), options.dev)
            for record in audit.audit(judge, definition, solution, only):
                report.append(options.report, record)
                records.append(record)
    print_table([audit.table_row(record, report.table_row(record)) for record in records], audit.COLUMNS)
    for line in report.troubles(records) + notes(records):
        print(line)
    counts = report.counts(records)
    print_json({"report": str(options.report)} | counts)
    return 1 if counts["rejected"] or not counts["passed"] else 0


def notes(records: list[dict]) -> list[str]:
    """List the integration notes of each solution (its module docstring), once."""
    found = {record["solution"]: record["audit"].get("notes") or "no module docstring" for record in records}
    return [f"\n{name}:\n{text}" for name, text in found.items()]


if __name__ == "__main__":
    run_main(main)
