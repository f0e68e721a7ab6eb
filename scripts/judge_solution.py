#!/usr/bin/env python3
"""Judge one candidate against its task and the task's baseline.

Exit code: 0 accepted (every workload of the task, or of --dev, passes every check), 1 rejected, 2 could not judge,
or not all of them: what was left out is listed with the command that fetches it. The speedup is reported; it is
not a condition: of launches the ratio of the medians, of eager calls the median ratio of paired samples. With
--validation-only no baseline is needed.
"""

import argparse
from pathlib import Path

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.core.ranges import whole
from inference_kernels.judge.options import add_options, chosen_workloads, judging

COLUMNS = ["workload", "axes", "status", "speedup", "candidate us", "baseline us", "floor ratio"]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("candidate", type=Path, help="a native Solution JSON, or a folder with main.py")
    add_options(result)
    result.add_argument("--task", metavar="NAME", help="definition that a folder solves")
    result.add_argument("--baseline", metavar="NAME", help="compare with this solution instead of the task's baseline")
    result.add_argument(
        "--duels",
        type=whole(1, 1000),
        default=1,
        metavar="N",
        help="whole comparisons, each in new processes, of which the mean counts (default: 1)",
    )
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core.definitions import load_definition
    from inference_kernels.judge.benchmark import benchmark
    from inference_kernels.judge.candidate import read_candidate
    from inference_kernels.judge.duel import duels, find_baseline, require_whole, verdict

    candidate = read_candidate(options.candidate, options.root, options.task)
    definition = load_definition(options.root, str(candidate.get("definition")))
    with judging(options) as judge:
        task = judge.task(definition["name"])
        only = chosen_workloads(task, options.dev)
        if options.validation_only and not options.baseline:
            pairs = [(record, {}) for record in benchmark(judge, definition, candidate, only, set())]
        else:
            baseline = find_baseline(options.root, task, options.baseline)
            count = 1 if options.validation_only else options.duels
            pairs = duels(judge, definition, candidate, baseline, only, count)
    result = verdict(pairs)
    show(pairs, result)
    if result["rejected"]:
        return 1
    require_whole(result, definition["name"])
    return 0


def show(pairs: list, result: dict) -> None:
    from inference_kernels.judge.duel import single_duel_warning, speedup
    from inference_kernels.judge.report import number, troubles

    rows = []
    for one, other in pairs:
        own, theirs = (record.get("timing", {}).get(one["timed"], {}) for record in (one, other))
        rows.append(
            {
                "workload": one["workload"][:8],
                "status": one["status"],
                "axes": ", ".join(f"{name}={size}" for name, size in one["axes"].items()),
                "speedup": number(speedup(one, other)),
                "candidate us": number(own.get("median_us")),
                "baseline us": number(theirs.get("median_us")),
                "floor ratio": number(own.get("floor_ratio")),
            }
        )
    print_table(rows, COLUMNS)
    for line in troubles([one for one, _ in pairs]):
        print(line)
    for label, value in result["groups"].items():
        print(f"{label}: {value:.3f}")
    mean, means = result["geometric_mean"], result["duels"]
    single = f"; single duels {number(min(means))} to {number(max(means))}" if len(means) > 1 else ""
    outcome = "accepted" if result["accepted"] else "rejected" if result["rejected"] else "not judged as a whole"
    print(f"{outcome}, geometric mean speedup {number(mean)}{single}")
    if len(means) == 1 and (why := single_duel_warning(pairs)):
        print(f"{why}: --duels N takes the mean of N pairs")
    print_json(result)


if __name__ == "__main__":
    run_main(main)
