#!/usr/bin/env python3
"""Build NATTEN's Hopper kernels for the neighborhood attention of this dataset alone, which takes minutes.

Needs torch for CUDA, nvcc and ninja: run it in the engine's environment of the GPU host. Then put the output folder
on PYTHONPATH; the engine's decoder and the `natten_` solutions find it there.
"""

import argparse
import sys
from pathlib import Path

from inference_kernels.cli import print_json, run_main
from inference_kernels.natten_build import VERSION, build


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="new folder")
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help=f"natten-{VERSION}.tar.gz (default: pip downloads it)"
    )
    options = parser.parse_args()
    extension = build(options.output, options.source, lambda line: print(line, file=sys.stderr, flush=True))
    print_json({"extension": str(extension), "use": f"export PYTHONPATH={options.output.resolve()}"})
    return 0


if __name__ == "__main__":
    run_main(main)
