#!/usr/bin/env python3
"""Measure time and scratch memory of the comparator on BF16 tensors against one pass of torch.equal over them."""

import argparse
import json
import resource
import time

import torch

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.core.compare import Tolerance, compare


def pair(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw seeded values, and copy them with every third one moved by one unit in the last place."""
    first = torch.empty(elements, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, elements, 2**24):
        part = first[start : start + 2**24]
        part.copy_(torch.empty(part.shape).normal_(generator=generator))
    second = first.clone()
    second.view(torch.int16)[::3] += 1
    return first, second


def timed(function, *arguments) -> tuple[float, object]:
    started = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - started, result


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--elements", type=float, default=1e9, help="elements of each tensor (default: 1e9)")
    return result


def main() -> None:
    options = parser().parse_args()
    first, second = pair(int(options.elements))
    same = first.clone()
    timed(torch.equal, first, same)
    equal_seconds, _ = timed(torch.equal, first, same)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, result = timed(compare, second, first, Tolerance(0.005, 0.016))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "benchmark": "compare",
                "elements": int(options.elements),
                "threads": torch.get_num_threads(),
                "torch_equal_seconds": round(equal_seconds, 3),
                "compare_seconds": round(seconds, 3),
                "ratio": round(seconds / equal_seconds, 2),
                "scratch_mb": (after - before) // 1024,
                "status": result.status,
            }
        )
    )


if __name__ == "__main__":
    main()
