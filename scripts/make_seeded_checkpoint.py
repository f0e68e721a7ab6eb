#!/usr/bin/env python3
"""Write a seeded (untrained) checkpoint of a published architecture, bit for bit the same everywhere."""

import argparse
import os
import sys
import time
from pathlib import Path

from inference_kernels.cli import print_json, run_main
from inference_kernels.models.registry import MEDIA, MODELS, seeded_pipeline
from inference_kernels.seeded.checkpoint import write_checkpoint


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=__doc__, epilog="After an interruption run the same command again: it goes on."
    )
    add = result.add_argument
    add("--kind", required=True, choices=sorted(MODELS), help="architecture")
    help_output = "new folder; its name must contain qwen-image-2.1 or LTX-2.5-Diffusers"
    add("--output", required=True, type=Path, metavar="DIR", help=help_output)
    add("--seed", type=int, default=0, help="seed of all weights (default 0)")
    add("--blocks", type=int, default=2, help=f"blocks of {' and '.join(MEDIA)} (default 2)")
    help_jobs = f"files written at a time (default 1; there are {os.cpu_count()} cores)"
    add("--jobs", type=int, default=1, metavar="N", help=help_jobs)
    return result


def main() -> int:
    command = parser()
    arguments = command.parse_args()
    if arguments.seed < 0 or arguments.blocks < 1 or arguments.jobs < 1:
        command.error("--seed must be >= 0, --blocks and --jobs >= 1")
    started = time.monotonic()
    pipeline = seeded_pipeline(arguments.kind, arguments.blocks)
    written = write_checkpoint(
        pipeline,
        arguments.seed,
        arguments.output,
        lambda line: print(line, file=sys.stderr, flush=True),
        arguments.jobs,
    )
    print_json(
        {
            "checkpoint": str(arguments.output),
            "written": written,
            "bytes": pipeline.weight_bytes(),
            "seed": arguments.seed,
            "config_sha256": pipeline.config_sha256(),
            "seconds": round(time.monotonic() - started, 1),
        }
    )
    return 0


if __name__ == "__main__":
    run_main(main)
