#!/usr/bin/env python3
"""Prepare the licensed original weights of LTX-2.5 for the engine: verify, convert, load strictly.

Download the distribution after accepting its licence. The manifest: inference_kernels/models/ltx/prepare.py.
"""

import argparse
import sys
from pathlib import Path

from inference_kernels.cli import print_json, run_main
from inference_kernels.models.ltx.prepare import (
    CONVERTER_COMMIT,
    PATH_MUST_CONTAIN,
    ConversionPlan,
    prepare,
    read_manifest,
)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=__doc__, epilog="After an interruption run the same command again: it goes on."
    )
    result.add_argument("--distribution", required=True, type=Path, metavar="DIR", help="the downloaded files")
    result.add_argument("--manifest", required=True, type=Path, metavar="JSON", help="what they must be")
    result.add_argument(
        "--diffusers", required=True, type=Path, metavar="DIR", help=f"checkout of Diffusers at {CONVERTER_COMMIT}"
    )
    result.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help=f"new folder, or the one to complete; its path must contain {PATH_MUST_CONTAIN}",
    )
    result.add_argument(
        "--python",
        default=sys.executable,
        metavar="EXE",
        help="interpreter with the dependencies of Diffusers (default: this one)",
    )
    result.add_argument("--dry-run", action="store_true", help="print the plan and do nothing")
    return result


def main() -> int:
    arguments = parser().parse_args()
    plan = ConversionPlan(
        arguments.distribution,
        read_manifest(arguments.manifest),
        arguments.diffusers,
        arguments.output,
        arguments.python,
    )
    if arguments.dry_run:
        for step in plan.steps():
            print(f"{step.name}: {step.what}")
        print_json({"output": str(plan.output), "steps": len(list(plan.steps())), "run": []})
        return 0
    print_json(prepare(plan, lambda line: print(line, file=sys.stderr, flush=True)))
    return 0


if __name__ == "__main__":
    run_main(main)
