#!/usr/bin/env python3
"""Measure the judge on one GPU: launch times against CUPTI, solutions against themselves, and what a duel costs.

Uses the first visible CUDA device, which nothing else may use meanwhile, and writes the summary behind docs/judge.md.
A failed part fails the command, and then nothing is written.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.cli import positive, print_table, progress, run_main
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.errors import EnvironmentMissing
from inference_kernels.core.files import write_json
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.core.solutions import find_solutions
from inference_kernels.judge.duel import duel, speedup, verdict
from inference_kernels.judge.gpu import nvidia_smi, resolve
from inference_kernels.judge.judge import Judge, JudgeOptions
from inference_kernels.judge.stats import geometric_mean
from inference_kernels.judge.verdicts import CannotJudge
from inference_kernels.pages.judge import PARTS, SUMMARY

Pair = tuple[dict[str, Any], dict[str, Any]]

ROUNDS, PAUSED, REPLAYS = 6, 4, 10
DUELS = 10
# Launches of a library and of Triton, of 7 to 50 us on an H200, and eager calls; ten duels take some ten minutes.
SOLUTIONS = (
    "torch_dense_gemm_bf16_nt_n4096_k4096",
    "triton_neighborhood_attention_3d_h32_d64_w3x7x7",
    "torch_neighborhood_attention_3d_h32_d64_w3x7x7",
    "triton_gdn_decode_qk4_v8_d128_k_last",
    "triton_gdn_prefill_qk4_v8_d128_k_last",
)


def kernels() -> dict[str, Callable[[], Any]]:
    """Make six launches, of about 2 us to 5 ms on a current data-centre GPU."""
    import torch

    def copy(mebibytes: int):
        source = torch.ones(mebibytes * 2**18, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def product(size: int):
        left, right = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        target = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=target)

    return {f"copy of {size} MiB": copy(size) for size in (1, 32, 256)} | {
        f"BF16 product of {size} x {size}": product(size) for size in (1024, 4096, 12288)
    }


def accuracy() -> list[dict[str, Any]]:
    """Time each kernel by the judge's events and by CUPTI, interleaved, so that both see the same clocks."""
    from inference_kernels.judge.worker.cuda import CudaDevice

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
        if len(traced) != len(shown):
            raise CannotJudge(
                expected=f"{len(shown)} kernel durations from CUPTI",
                found=str(len(traced)),
                where=name,
                remedy="let this user profile the GPU (the driver's NVreg_RestrictProfilingToAdminUsers)",
            )
        rows.append(kernel_row(name, statistics.median(shown) - overhead_us, statistics.median(traced)))
    return rows


def kernel_row(name: str, judge_us: float, cupti_us: float) -> dict[str, Any]:
    return {
        "kernel": name,
        "judge_us": round(judge_us, 2),
        "cupti_us": round(cupti_us, 2),
        "difference_us": round(judge_us - cupti_us, 2),
        "difference_percent": round(100 * (judge_us / cupti_us - 1), 2),
    }


def self_duels(judge: Judge, name: str, count: int) -> dict[str, Any]:
    """Judge a solution against itself in `count` duels on its task's dev workloads, and sum them up.

    The sides change places from duel to duel, as in `judge_solution.py --duels`.
    """
    solution = find_solutions(judge.root, name, None)[0]
    definition = load_definition(judge.root, solution["definition"])
    only, found, seconds = tuple(judge.task(definition["name"]).dev), [], []
    for number in progress(range(count), count, name, "duel"):
        begun = time.monotonic()
        found.append(list(duel(judge, definition, solution, solution, only, number % 2)))
        seconds.append(time.monotonic() - begun)
    return summed_up(name, found, seconds)


def summed_up(name: str, duels: list[list[Pair]], seconds: list[float]) -> dict[str, Any]:
    """Sum up the record pairs of each self-duel; CannotJudge if a record does not pass."""
    pairs = [pair for one in duels for pair in one]
    for record in (record for pair in pairs for record in pair):
        if record["status"] != "pass":
            raise CannotJudge(
                expected="a solution that passes",
                found=f"{record['status']}: {record['detail']}",
                where=f"{name}, workload {record['workload']}",
                remedy="repair it, or name others with --solution",
            )
    ratios = [verdict(one)["geometric_mean"] for one in duels]
    return {
        "solution": name,
        "definition": pairs[0][0]["definition"],
        "timed": pairs[0][0]["timed"],
        "workloads": workload_rows(pairs),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "geometric_mean": round(geometric_mean(ratios), 4),
        "worst_duel": round(farthest(ratios), 4),
        "one_duel_resolves_percent": round(resolved_percent(ratios, 1), 2),
        "ten_duels_resolve_percent": round(resolved_percent(ratios, 10), 2),
        "seconds": cost([record for pair in pairs for record in pair]) | {"duel": round(statistics.median(seconds), 2)},
    }


def workload_rows(pairs: list[Pair]) -> list[dict[str, Any]]:
    """List the workloads: median time of both sides over all duels, and the single ratio that is farthest from 1."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair[0]["workload"], []).append(pair)
    return [
        {
            "workload": uuid,
            "axes": group[0][0]["axes"],
            "median_us": round(statistics.median(_median_us(record) for pair in group for record in pair), 2),
            "worst_ratio": round(farthest([speedup(*pair) for pair in group]), 4),
        }
        for uuid, group in groups.items()
    ]


def _median_us(record: dict[str, Any]) -> float:
    return record["timing"][record["timed"]]["median_us"]


def farthest(ratios: list[float]) -> float:
    return max(ratios, key=lambda ratio: abs(math.log(ratio)))


def resolved_percent(ratios: list[float], duels: int) -> float:
    """Compute the smallest difference that stands out in the mean of `duels` duels, in percent.

    Twice the root mean square of the logarithms of single ratios, which would all be 0 for an exact judge, over the
    square root of `duels`: independent normal errors stay below it in 95 of 100 cases.
    """
    spread = math.sqrt(statistics.fmean(math.log(ratio) ** 2 for ratio in ratios))
    return 100 * math.expm1(2 * spread / math.sqrt(duels))


def cost(records: list[dict[str, Any]]) -> dict[str, float]:
    """Average the seconds per record by part; `largest` is the record that took longest in total."""
    seconds = [record["seconds"] for record in records]
    means = {part: statistics.fmean(one.get(part, 0.0) for one in seconds) for part in (*PARTS, "total")}
    return {
        part: round(value, 3) for part, value in (means | {"largest": max(one["total"] for one in seconds)}).items()
    }


def environment(judge: Judge) -> dict[str, Any]:
    found = judge.environment
    return {
        "device": found["device"],
        "driver": found["driver"],
        "cuda": found["cuda"],
        "torch": found["packages"].get("torch"),
        "triton": found["packages"].get("triton"),
        "launch_overhead_us": round(found["launch_overhead_us"], 2),
    }


def command_line(options: argparse.Namespace) -> str:
    """Write the command that repeats these measurements."""
    words = ["python benchmarks/judge_accuracy.py"]
    words += [f"--duels {options.duels}"] * (options.duels != DUELS)
    return " ".join(words + [f"--solution {name}" for name in options.solution or ()])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentMissing(
            expected="a CUDA device", found="none", where="judge_accuracy.py", remedy="run it on a GPU host"
        )
    names = options.solution or SOLUTIONS
    for name in names:
        find_solutions(REPOSITORY, name, None)
    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    gpu = resolve(f"GPU-{uuid}", nvidia_smi("-L"))
    begun = time.monotonic()
    rows = accuracy()
    torch.cuda.empty_cache()
    with Judge(JudgeOptions(REPOSITORY, "cuda", gpu)) as judge:
        duels = [self_duels(judge, name, options.duels) for name in names]
        return {
            "command": command_line(options),
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(time.monotonic() - begun),
            **environment(judge),
            "kernels": rows,
            "self_duels": duels,
        }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--duels", type=positive, default=DUELS, metavar="N", help=f"duels of each solution (default: {DUELS})"
    )
    result.add_argument(
        "--solution",
        action="append",
        metavar="NAME",
        help=f"solution to judge against itself; may be repeated (default: {', '.join(SOLUTIONS)})",
    )
    result.add_argument(
        "--output", type=Path, default=REPOSITORY / SUMMARY, metavar="FILE", help=f"the summary (default: {SUMMARY})"
    )
    return result


def main() -> int:
    options = parser().parse_args()
    found = measure(options)
    write_json(options.output, found)
    print_table(found["kernels"], list(found["kernels"][0]))
    columns = ["solution", "timed", "geometric_mean", "worst_duel", "one_duel_resolves_percent"]
    print_table(found["self_duels"], columns)
    print(f"{options.output}: {found['seconds']} s")
    return 0


if __name__ == "__main__":
    run_main(main)
