#!/usr/bin/env python3
"""Write what a text-model capture holds, without tensors: each call's axes, kernel and errors of its replay.

For runs too large to copy. An incomplete run counts with its finished cases, whose calls are replayed first.
"""

import argparse
import sys
from pathlib import Path

from inference_kernels.capture.run import RunFolder, read_manifest
from inference_kernels.cli import print_json, run_main
from inference_kernels.core.files import write_json
from inference_kernels.engine.agentx import served_profile
from inference_kernels.engine.summary import replay_calls, text_document


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("run", type=Path, metavar="RUN", help="folder of a capture run")
    result.add_argument("--output", required=True, type=Path, metavar="FILE", help="summary to write (JSON)")
    result.add_argument(
        "--device",
        default="cuda",
        choices=("cuda", "cpu"),
        help="where calls that were not replayed yet are (default: cuda)",
    )
    return result


def main() -> int:
    arguments = parser().parse_args()
    settings = read_manifest(arguments.run)["settings"]
    run = RunFolder.open(arguments.run, settings)
    profile = served_profile(settings["kind"], settings["profile"], settings["max_output_tokens"])
    if not run.manifest["complete"]:
        replay_calls(run, profile.ties, arguments.device, lambda line: print(line, file=sys.stderr, flush=True))
    found = text_document(run, profile.cases)
    write_json(arguments.output, found)
    failed = sum(not call["passed"] for call in found["calls"])
    print_json(
        {
            "summary": str(arguments.output),
            "complete": found["complete"],
            "calls": len(found["calls"]),
            "failed": failed,
            "excluded": len(found["excluded"]),
            "missed": found["missed"],
        }
    )
    return 1 if failed else 0


if __name__ == "__main__":
    run_main(main)
