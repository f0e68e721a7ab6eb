#!/usr/bin/env python3
"""How a solution's eager calls compare with themselves in two processes, by the way in which the two take turns.

Every ratio comes from a new pair of processes on the first workload of the task's dev subset: CALLS calls a side, so
many on end, on any CPU or both sides on one, which changes. Prints one JSON line for each way: the ratios of the
medians of both sides, and the medians of the ratios of their calls in turn.
"""

import argparse
import json
import statistics
from pathlib import Path

from tqdm import tqdm

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.cli import positive, run_main
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.solutions import find_solutions
from inference_kernels.judge.bench import Bench
from inference_kernels.judge.case import Case
from inference_kernels.judge.checks import validate
from inference_kernels.judge.duel import CALLS_ON_A_CPU
from inference_kernels.judge.gpu import nvidia_smi, resolve
from inference_kernels.judge.judge import Judge, Options, Subject
from inference_kernels.judge.process import any_cpu
from inference_kernels.judge.stats import median_ratio
from inference_kernels.judge.timing import Trial

ROOT = Path(__file__).resolve().parents[1]
CALLS = 150
# (calls on end, both sides on one CPU); judge/duel.py does the last.
WAYS = ((50, False), (50, True), (5, True), (1, True))


def take_turns(benches: list[Bench], on_end: int, one_cpu: bool) -> tuple[float, float]:
    """The first side's time over the second's: ratio of medians, median of ratios."""
    trials = [Trial(bench, "call", CALLS) for bench in benches]
    for number in range(CALLS // on_end):
        if one_cpu and number * on_end % CALLS_ON_A_CPU == 0:
            cpu = any_cpu()
            for bench in benches:
                bench.worker.keep_to(cpu)
        for side in ((0, 1), (1, 0))[number % 2]:
            trials[side].go_on(on_end, warmup=1)
    first, second = (trial.samples for trial in trials)
    return statistics.median(first) / statistics.median(second), median_ratio(first, second)


def new_pair(judge: Judge, definition: dict, solution: dict, case: Case, way: tuple[int, bool]) -> tuple[float, float]:
    subjects = [Subject(judge, definition, solution) for _ in range(2)]
    try:
        benches = [subject.bench(case) for subject in subjects]
        for bench in benches:
            bench.load()
            validate(bench)
        return take_turns(benches, *way)
    finally:
        for subject in subjects:
            subject.retire()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True, metavar="UUID", help="GPU UUID, or cpu")
    parser.add_argument("--solution", required=True, metavar="NAME", help="whom to compare with itself")
    parser.add_argument("--pairs", type=positive, default=10, help="pairs of processes for each way (default: 10)")
    options = parser.parse_args()
    solution = find_solutions(ROOT, options.solution, None)[0]
    definition = load_definition(ROOT, solution["definition"])
    device = Options(ROOT) if options.gpu == "cpu" else Options(ROOT, "cuda", resolve(options.gpu, nvidia_smi("-L")))
    found: dict[tuple[int, bool], list[tuple[float, float]]] = {way: [] for way in WAYS}
    with Judge(device) as judge:
        task = judge.task(definition["name"])
        item = judge.workloads(definition, tuple(task.dev[:1]))[0]
        case = judge.load(definition, item, task, seed=0)
        # Round by round, so that no way has the host to itself at a better time.
        for way in tqdm(WAYS * options.pairs, disable=None, unit="pair"):
            found[way].append(new_pair(judge, definition, solution, case, way))
    for (on_end, one_cpu), ratios in found.items():
        print(
            json.dumps(
                {
                    "solution": options.solution,
                    "calls on end": on_end,
                    "one CPU": one_cpu,
                    "ratios of medians": [round(ratio, 4) for ratio, _ in ratios],
                    "medians of ratios": [round(ratio, 4) for _, ratio in ratios],
                }
            )
        )
    return 0


if __name__ == "__main__":
    run_main(main)
