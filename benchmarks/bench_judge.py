#!/usr/bin/env python3
"""The judge's own accuracy and cost on a GPU: launch times against CUPTI durations, a solution against
itself.

Prints one table row a kernel (microseconds: the judge's median, the summed kernel durations that torch's
profiler reads from CUPTI, their difference), then the geometric means of repeated self-duels and the seconds
a judged workload costs.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.solutions import find_solutions
from inference_kernels.judge.duel import duel, verdict
from inference_kernels.judge.gpu import nvidia_smi, resolve
from inference_kernels.judge.judge import Judge, Options
from inference_kernels.judge.worker.device import CudaDevice

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, PAUSED, REPLAYS = 6, 4, 10
DUELLIST = "torch_dense_gemm_bf16_nt_n4096_k4096"


def kernels() -> dict:
    """Six launches from about 5 us to 5 ms on a current data-centre GPU."""

    def copy(megabytes: int):
        source = torch.ones(megabytes * 2**18, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def product(size: int):
        left, right = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        target = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=target)

    return {
        "copy 1 MiB": copy(1),
        "copy 32 MiB": copy(32),
        "copy 256 MiB": copy(256),
        "product 1024": product(1024),
        "product 4096": product(4096),
        "product 12288": product(12288),
    }


def accuracy() -> list[dict]:
    """The judge's launch times beside CUPTI's, in turns, so that both see the same clocks and temperature."""
    device, rows = CudaDevice(), []
    overhead_us = device.launch_overhead_ns() / 1e3
    for name, launch in kernels().items():
        replay, _ = device.capture(launch, 3)
        shown, traced = [], []
        for _ in range(ROUNDS):
            # Both blocks follow a pause (starting or ending a trace), in which a hot GPU recovers its clocks.
            block = [device.time_replay(replay)[0] / 1e3 for _ in range(PAUSED + REPLAYS)]
            shown += block[PAUSED:]
            block = [duration / 1e3 for duration in device.kernel_durations_ns(replay, PAUSED + REPLAYS)]
            traced += block[PAUSED:]
        judge_us, truth = statistics.median(shown) - overhead_us, statistics.median(traced)
        rows.append(
            {
                "kernel": name,
                "judge us": round(judge_us, 2),
                "CUPTI us": round(truth, 2),
                "difference us": round(judge_us - truth, 2),
                "percent": round(100 * (judge_us / truth - 1), 1),
                "overhead us": round(overhead_us, 2),
            }
        )
    return rows


def self_duels(count: int, name: str) -> dict:
    """Geometric means of a solution against itself on its dev workloads, and what one judged workload costs.

    The sides change places from duel to duel, as in judge_solution.py --duels.
    """
    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    solution = find_solutions(ROOT, name, None)[0]
    definition = load_definition(ROOT, solution["definition"])
    means, seconds = [], []
    with Judge(Options(ROOT, "cuda", resolve(f"GPU-{uuid}", nvidia_smi("-L")))) as judge:
        only = tuple(judge.task(definition["name"]).dev)
        for number in range(count):
            begun = time.monotonic()
            pairs = list(duel(judge, definition, solution, solution, only, number % 2))
            seconds.append((time.monotonic() - begun) / (2 * len(pairs)))
            means.append(verdict(pairs)["geometric_mean"])
        environment = judge.environment
    return {
        "solution": name,
        "geometric_means": means,
        "worst": max(abs(mean - 1) for mean in means),
        "seconds_per_solution_and_workload": statistics.median(seconds),
        "launch_overhead_us": environment["launch_overhead_us"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duels", type=int, default=10, help="self-duels (default: 10)")
    parser.add_argument(
        "--solution",
        action="append",
        metavar="NAME",
        help=f"whom to judge against itself; repeatable (default: {DUELLIST})",
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: bench_judge.py needs a CUDA device")
    rows = accuracy()
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    duels = [self_duels(options.duels, name) for name in options.solution or [DUELLIST]]
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": rows, "duels": duels}))


if __name__ == "__main__":
    main()
