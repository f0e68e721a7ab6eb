#!/usr/bin/env python3
"""Verify the data of this checkout: write the seeded weights, check everything, replay every workload.

Replays on the GPU if torch sees one, else on the CPU. Prints one table and, last, one JSON line.
"""

import argparse
import os
import time
from pathlib import Path

from inference_kernels.cli import print_json, print_table, progress, run_main
from inference_kernels.core import replay
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument("--device", help="device of the replay (default: cuda if there is one, else cpu)")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.check import dataset
    from inference_kernels.seeded import materialize

    started = time.monotonic()
    device = options.device or default_device()
    replay.require_device(device)
    # Expert banks of several GB are written on GPU hosts only; elsewhere their workloads are skipped.
    limit = float("inf") if device.startswith("cuda") else materialize.SIZE_LIMIT
    files = [item for item in materialize.generated_files(options.root) if item.recipe.nbytes <= limit]
    list(progress(materialize.materialize(options.root, files), len(files), "materialize"))
    state = dataset.check_root(options.root, None, os.cpu_count() or 1, progress)
    for finding in state.findings.items:
        if finding.level != "note":
            print(finding.line())
    total = replay.count_workloads(options.root)
    results = list(progress(replay.replay_root(options.root, device), total, "replay", "workload"))
    print_table(replay.replay_rows(results), replay.REPLAY_COLUMNS)
    for line in replay.replay_troubles(results):
        print(line)
    checked, replayed = dataset.summary(state), replay.replay_counts(results)
    failed = checked["errors"] + replayed["failed"]
    print_json(
        {
            "checked": checked["checked"],
            "replayed": replayed["replayed"],
            "failed": failed,
            "skipped": replayed["skipped"],
            "classes": checked["classes"],
            "device": device,
            "seconds": round(time.monotonic() - started, 1),
        }
    )
    return 0 if replayed["replayed"] and not failed else 1


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    run_main(main)
