"""Write a seeded (untrained) checkpoint of a published architecture, bit for bit the same everywhere."""

import argparse
import os
import sys
import time
from pathlib import Path

from inference_kernels.cli import print_json, run_main
from inference_kernels.models.deepseek.checkpoint import deepseek_checkpoint
from inference_kernels.models.gdn.checkpoint import qwen3_next_checkpoint
from inference_kernels.models.image.checkpoint import image_pipeline
from inference_kernels.models.ltx.checkpoint import ltx_pipeline
from inference_kernels.models.qwen.checkpoint import qwen_next_checkpoint
from inference_kernels.seeded.checkpoint import write_checkpoint

# kind -> function of the number of transformer blocks.
PIPELINES = {"image": image_pipeline, "ltx25": ltx_pipeline}
# Language models have a fixed number of layers: one of each kind that a captured operator needs.
LANGUAGE_MODELS = {
    "deepseek41": deepseek_checkpoint,
    "qwen-next": qwen_next_checkpoint,
    "qwen3-next-gdn": qwen3_next_checkpoint,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="After an interruption run the same command again: it goes on."
    )
    parser.add_argument("--kind", required=True, choices=sorted(PIPELINES | LANGUAGE_MODELS), help="architecture")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="new folder; its name must contain qwen-image-2.1 or LTX-2.5-Diffusers",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all weights (default 0)")
    parser.add_argument("--blocks", type=int, default=2, help="blocks of image and ltx25 (default 2)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help=f"files written at a time (default 1; there are {os.cpu_count()} cores)",
    )
    arguments = parser.parse_args()
    if arguments.seed < 0 or arguments.blocks < 1 or arguments.jobs < 1:
        parser.error("--seed must be >= 0, --blocks and --jobs >= 1")
    return arguments


def main() -> int:
    arguments = parse()
    started = time.monotonic()
    language_model = LANGUAGE_MODELS.get(arguments.kind)
    pipeline = language_model() if language_model else PIPELINES[arguments.kind](arguments.blocks)
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
