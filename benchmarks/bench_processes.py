#!/usr/bin/env python3
"""How much one kernel's launch time depends on the process that runs it, and on where its tensors lie.

Several processes on one GPU take turns in timing the same matrix product, each with copies of its tensors in several
places. Prints the medians of a process (microseconds, cold L2: by the judge's events, and the kernel's own duration as
CUPTI records it), then one JSON line with the spread between processes and between places of a process.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.judge.worker.device import CudaDevice

REPLAYS = 25


def serve(pipe: Connection, shape: tuple[int, int, int], places: int) -> None:
    """Answer `events` or `CUPTI` with the median of each place, in microseconds, until None comes."""
    device = CudaDevice()
    replays = [device.capture(product(*shape), 3)[0] for _ in range(places)]
    pipe.send("ready")
    while (timer := pipe.recv()) is not None:
        samples = [
            device.kernel_durations_ns(replay, REPLAYS)
            if timer == "CUPTI"
            else [device.time_replay(replay)[0] for _ in range(REPLAYS)]
            for replay in replays
        ]
        pipe.send([statistics.median(times) / 1e3 for times in samples])


def product(m: int, n: int, k: int) -> Callable[[], torch.Tensor]:
    left, right = (torch.randn(size, k, device="cuda").bfloat16() for size in (m, n))
    target = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    return lambda: torch.mm(left, right.t(), out=target)


def take_turns(pipes: list[Connection], rounds: int) -> dict[str, list[list[float]]]:
    """timer -> process -> place -> median over the rounds, which go through the processes forwards and backwards."""
    found: dict[str, list] = {"events": [[] for _ in pipes], "CUPTI": [[] for _ in pipes]}
    for number in range(rounds):
        for timer, rows in found.items():
            for index in range(len(pipes))[:: 1 if number % 2 else -1]:
                pipes[index].send(timer)
                rows[index].append(pipes[index].recv())
    return {timer: [list(map(statistics.median, zip(*row))) for row in rows] for timer, rows in found.items()}


def spread(rows: list[list[float]]) -> dict[str, float]:
    """Means of processes, and standard deviations in percent: of those means, and between places of a process."""
    means = list(map(statistics.fmean, rows))
    middle, within = statistics.fmean(means), statistics.fmean(map(statistics.variance, rows)) ** 0.5
    return {
        "mean us": round(middle, 2),
        "fastest process us": round(min(means), 2),
        "slowest process us": round(max(means), 2),
        "between processes %": round(100 * statistics.stdev(means) / middle, 2),
        "between places %": round(100 * within / middle, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="processes on the GPU (default: 8)")
    parser.add_argument("--places", type=int, default=3, help="copies of the tensors in each (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each process; medians count (default: 5)")
    parser.add_argument(
        "--shape",
        type=int,
        nargs=3,
        metavar=("M", "N", "K"),
        default=(64, 4096, 4096),
        help="of the product (default: 64 4096 4096)",
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: bench_processes.py needs a CUDA device")
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    for _ in range(options.processes):
        here, there = context.Pipe()
        processes.append(context.Process(target=serve, args=(there, tuple(options.shape), options.places)))
        processes[-1].start()
        there.close()
        pipes.append(here)
        here.recv()
    found = take_turns(pipes, options.rounds)
    for pipe, process in zip(pipes, processes):
        pipe.send(None)
        process.join()
    for number, rows in enumerate(zip(*found.values())):
        print(
            f"process {number}",
            *(f"{timer} " + " ".join(f"{value:.2f}" for value in row) for timer, row in zip(found, rows)),
            sep="  ",
        )
    print(
        json.dumps(
            {"device": torch.cuda.get_device_name(), "shape": list(options.shape)}
            | {timer: spread(rows) for timer, rows in found.items()}
        )
    )


if __name__ == "__main__":
    main()
