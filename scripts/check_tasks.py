#!/usr/bin/env python3
"""Check the acceptance tasks: do their tolerances tell wrong answers from right ones?

For each task and each of its dev workloads (all workloads if it names none) these answers must fail: zeros,
the mean of the reference output, an input of equal shape and dtype, another workload's output (cropped or
tiled to the shape if necessary), the reference output with two neighbouring rows exchanged. Answers that pass
are listed with the share of elements that match. Exits 1 only if something could not be measured, 2 if the
judge has no floor for the op_type of a definition.
"""

import argparse
from pathlib import Path
from typing import Any

from inference_kernels.cli import print_json, print_table, progress, run_main
from inference_kernels.core import replay, tasks
from inference_kernels.core.layout import REPOSITORY

DEV_COLUMNS = ["definition", "workloads", "dev", "classes", "changed"]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument("--definition", help="check the task of this definition only")
    result.add_argument("--device", default="cpu", help="device of the references (default: cpu)")
    result.add_argument("--json", type=Path, metavar="FILE", help="write every single result to FILE")
    mode = result.add_mutually_exclusive_group()
    add = mode.add_argument
    add("--write-summary", action="store_true", help="also update results/summaries/discrimination.json")
    add("--choose-dev", action="store_true", help="instead: fill `dev` of the tasks from the workloads that exist")
    add("--self-test", action="store_true", help="instead: build every reference as a native solution and test that")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core import definitions, files, workloads

    if options.definition:
        chosen = [definitions.load_definition(options.root, options.definition)]
    else:
        chosen = [definitions.read_definition(path) for path in definitions.definition_files(options.root)]
    classes = workloads.data_classes(options.root)
    if options.choose_dev:
        results, totals = choose_dev(options.root, chosen, classes)
    else:
        replay.require_device(options.device)
        run = run_self_tests if options.self_test else discriminate
        results, totals = run(options, chosen, classes)
        totals["device"] = options.device
    if options.json:
        files.write_json(options.json, {"summary": totals, "results": results})
    print_json(totals)
    return 1 if totals.get("errors") else 0


def discriminate(options: argparse.Namespace, chosen: list[dict], classes: dict) -> tuple[list, dict]:
    from inference_kernels.check.discrimination import measure
    from inference_kernels.core import records
    from inference_kernels.judge.floor import bound_of
    from inference_kernels.pages import discrimination

    for definition in chosen:
        bound_of(definition)
    work = progress(chosen, len(chosen), "discriminate", "definition")
    measured = [measure(options.root, item, classes, options.device) for item in work]
    print_table(discrimination.rows(measured), discrimination.COLUMNS)
    for line in discrimination.troubles(measured):
        print(line)
    if options.write_summary:
        known = {name: True for name in discrimination.read_summary(options.root) if options.definition}
        known |= {definition["name"]: bool(records.read_workloads(options.root, definition)) for definition in chosen}
        print(discrimination.write_summary(options.root, measured, known).relative_to(options.root))
    return [item.to_json() for item in measured], discrimination.counts(measured)


def run_self_tests(options: argparse.Namespace, chosen: list[dict], classes: dict) -> tuple[list, dict[str, Any]]:
    from inference_kernels.check.self_test import self_test

    work = progress(chosen, len(chosen), "self-test", "definition")
    tested = [result for item in work for result in self_test(options.root, item, classes, options.device)]
    print_table(replay.replay_rows(tested), replay.REPLAY_COLUMNS)
    for line in replay.replay_troubles(tested):
        print(line)
    totals = replay.replay_counts(tested)
    broken = {f"{item.definition} {item.workload}": item.non_finite for item in tested if item.non_finite}
    results = [
        {
            "definition": item.definition,
            "workload": item.workload,
            "class": item.data_class,
            "status": item.status,
            "reason": item.reason,
            "errors": item.errors,
            "non_finite": item.non_finite,
        }
        for item in tested
    ]
    return results, {
        "tested": totals["replayed"],
        "errors": totals["failed"],
        "skipped": totals["skipped"],
        "non_finite": broken,
    }


def choose_dev(root: Path, chosen: list[dict], classes: dict) -> tuple[list, dict[str, Any]]:
    from inference_kernels.core.workloads import available_workloads

    results = []
    for definition in chosen:
        name = definition["name"]
        found = available_workloads(root, definition, classes)
        uuids = tasks.choose_dev(tasks.read_task(root, name), found)
        kinds = [item.data_class for item in found if item.uuid in uuids]
        results.append(
            {
                "definition": name,
                "workloads": len(found),
                "dev": len(uuids),
                "classes": ", ".join(f"{kind} {kinds.count(kind)}" for kind in sorted(set(kinds))),
                "changed": "yes" if tasks.write_dev(root, name, uuids) else "no",
            }
        )
    print_table(results, DEV_COLUMNS)
    return results, {"tasks": len(results), "changed": sum(row["changed"] == "yes" for row in results)}


if __name__ == "__main__":
    run_main(main)
