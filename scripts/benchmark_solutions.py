#!/usr/bin/env python3
"""Validate solutions on captured workloads, every output element, and measure launch and call times."""

import argparse
import sys
from pathlib import Path

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.judge.options import add_options, chosen_workloads, judging


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    add_options(result)
    result.add_argument("--report", type=Path, required=True, metavar="FILE", help="JSON lines, one per workload")
    result.add_argument(
        "--resume", action="store_true", help="continue a report of this machine: skip what passed and is unchanged"
    )
    result.add_argument("--solution", metavar="NAME", help="this solution only")
    result.add_argument("--definition", metavar="NAME", help="solutions of this definition only")
    result.add_argument(
        "--compare-to",
        choices=("reference", "capture"),
        default="reference",
        help="truth: the definition's reference (default), or the engine's saved outputs",
    )
    result.add_argument("--traces", type=Path, metavar="DIR", help="also append native Traces below this folder")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core.solutions import find_solutions
    from inference_kernels.judge import report

    solutions = find_solutions(options.root, options.solution, options.definition)
    report.start_report(options.report, options.resume)
    with judging(options, options.compare_to) as judge:
        finished, warning = set(), ""
        if options.report.exists():
            finished, warning = report.finished_work(options.report, judge.environment)
        if warning:
            sys.stderr.write(f"warning: {warning}\n")
        records, skipped = [], 0
        for solution in solutions:
            judged, wanted = run(options, judge, solution, finished)
            records += judged
            skipped += wanted - len(judged)
    print_table([report.table_row(record) for record in records], report.COLUMNS)
    for line in report.troubles(records):
        print(line)
    counts = report.counts(records)
    print_json({"report": str(options.report), "skipped": skipped} | counts)
    return 1 if counts["rejected"] or not (counts["passed"] or skipped) else 0


def run(options: argparse.Namespace, judge, solution: dict, finished: set) -> tuple[list[dict], int]:
    """Judge a solution on the workloads that it has not finished; return the records, and how many were asked for."""
    from inference_kernels.core.definitions import load_definition
    from inference_kernels.core.records import read_workloads
    from inference_kernels.judge import report
    from inference_kernels.judge.benchmark import benchmark

    definition = load_definition(options.root, str(solution.get("definition")))
    only = chosen_workloads(judge.task(definition["name"]), options.dev)
    workloads = {item["uuid"]: item for item in read_workloads(options.root, definition)}
    records = []
    for record in benchmark(judge, definition, solution, only, finished):
        report.append(options.report, record)
        trace = report.trace_of(record, workloads[record["workload"]]) if options.traces else None
        if trace:
            report.write_trace(options.traces, definition["op_type"], trace)
        records.append(record)
    return records, len(judge.workloads(definition, only))


if __name__ == "__main__":
    run_main(main)
