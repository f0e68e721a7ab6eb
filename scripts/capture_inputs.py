#!/usr/bin/env python3
"""Import a validated capture run into a dataset, or replay a dataset against the engine's saved outputs."""

import argparse
from pathlib import Path

from inference_kernels.cli import print_json, print_table, progress, run_main


def main() -> int:
    options = parser().parse_args()
    if options.import_capture:
        return import_capture(options.import_capture, options.output_root, options.store)
    return replay_dataset(options.replay_root, options.device, options.definition)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    action = result.add_mutually_exclusive_group(required=True)
    action.add_argument("--import-capture", type=Path, metavar="RUN", help="folder of a complete capture run")
    action.add_argument("--replay-root", type=Path, metavar="ROOT", help="dataset whose workloads are replayed")
    result.add_argument(
        "--output-root",
        type=Path,
        default=Path("."),
        metavar="ROOT",
        help="dataset that receives an import; must hold the definitions (default: .)",
    )
    result.add_argument(
        "--store",
        choices=("workloads", "starter"),
        default="workloads",
        help="where imported tensors go: blob/workloads (Git LFS) or blob/starter (plain git, small)",
    )
    result.add_argument("--device", default="cpu", help="device of a replay: cpu, cuda, cuda:1 ... (default: cpu)")
    result.add_argument("--definition", metavar="NAME", help="replay this definition only")
    return result


def import_capture(run: Path, root: Path, store: str) -> int:
    from inference_kernels.capture import importer

    calls = importer.read_run(run, root)
    importer.prepare_root(root)
    places = importer.plan_copies(calls, root, store)
    importer.check_starter_limits(places, run, root)
    copies = progress(importer.copy_tensors(run, root, places), len(places), "import")
    copied = sum(copies)
    new = importer.merge_records(root, calls, places)
    print_json({"calls": len(calls), "new_workloads": new, "tensors": len(places), "new_tensors": copied})
    return 0


def replay_dataset(root: Path, device: str, only: str | None) -> int:
    from inference_kernels.core import replay
    from inference_kernels.core.definitions import load_definition, require_dataset

    replay.require_device(device)
    require_dataset(root)
    if only:
        load_definition(root, only)
    results = list(
        progress(replay.replay_root(root, device, only), replay.count_workloads(root, only), "replay", "workload")
    )
    print_table(replay.replay_rows(results), replay.REPLAY_COLUMNS)
    for line in replay.replay_troubles(results):
        print(line)
    counts = replay.replay_counts(results)
    print_json({"device": device} | counts)
    return 0 if counts["replayed"] and not counts["failed"] else 1


if __name__ == "__main__":
    run_main(main)
