"""Timed calls, each on fresh values and some of them checked; prepared launches must follow changed values."""

import math
import time

from inference_kernels.judge.bench import POISONS, Bench
from inference_kernels.judge.checks import checked_call, differ, require_inputs, require_no_tails, require_outputs
from inference_kernels.judge.rearrange import DrawnMove
from inference_kernels.judge.stats import Timing, summarise
from inference_kernels.judge.verdicts import Rejected

MODES = ("launch", "call")
PREPARE_WARMUP = 2
# Differences between CUDA events are good to about this.
EVENT_RESOLUTION_NS = 500.0
# Timed calls of a trial are checked while their outputs fit in this budget, within these counts. To move
# the median a solution must cheat in half of the calls: of 50, sixteen checks miss all of those once in two million.
# Where only the reference knows the result of changed values, a trial stops checking after RECHECK_SECONDS of that.
CHECK_BYTES, CHECKS_AT_LEAST, CHECKS_AT_MOST, RECHECK_SECONDS = 2**26, 2, 16, 0.05
# A claimed median below this share of the judge's own clock per call, less the slack, is a lie.
BURST_SHARE, BURST_SLACK_NS, BURST_SECONDS, BURST_ATTEMPTS = 0.4, 8_000.0, 0.02, 3


def time_modes(bench: Bench, iterations: int, warmup: int, trials: int) -> None:
    """Time launches, then eager calls, of one solution alone."""
    prepare(bench)
    for mode in MODES:
        samples: list[float] = []
        for number in range(trials):
            samples += trial(bench, mode, iterations, 1 if number else warmup)
        record_timing(bench, mode, samples, iterations * trials)


def prepare(bench: Bench) -> None:
    """Prepare (and on a GPU capture) the launch of every set, then prove that it follows changed values."""
    for number in range(len(bench.sets)):
        bench.prepare(number, PREPARE_WARMUP)
    followed = False
    for number, arrangement in enumerate(bench.sets):
        before = arrangement.expected()
        _prove(bench, number, arrangement.take_all(after_prepare=True))
        followed = followed or differ(before, arrangement.expected())
    scrambled = bench.sets[0].scramble()
    if scrambled:
        _prove(bench, 0, scrambled)
    if not followed and not scrambled:
        bench.sheet.notes.append("no move after prepare changes the outputs: a launch may be precomputed")


def _prove(bench: Bench, number: int, drawn: list[DrawnMove]) -> None:
    bench.ready(number, "launch", drawn, POISONS[number % 2], fresh=False)
    checked_call(bench, "launch")
    require_outputs(bench, number, "launch")
    require_inputs(bench, number)


def trial(bench: Bench, mode: str, iterations: int, warmup: int) -> list[float]:
    """Time `iterations` consecutive calls; nanoseconds."""
    whole = Trial(bench, mode, iterations)
    whole.go_on(iterations, warmup)
    return whole.samples


class Trial:
    """Up to `iterations` timed calls, each on an input set chosen at random, with fresh values.

    Calls chosen at random here are checked; the worker cannot know which. samples: nanoseconds.
    """

    def __init__(self, bench: Bench, mode: str, iterations: int):
        self.bench, self.mode, self.iterations = bench, mode, iterations
        self.samples: list[float] = []
        self._checked = set(bench.random.sample(range(iterations), _checks(bench, iterations)))
        self._seconds_left, self._turns = RECHECK_SECONDS, 0

    def go_on(self, count: int, warmup: int) -> None:
        """Time the next `count` calls, after `warmup` that do not count."""
        for turn in range(-warmup, count):
            self._call(len(self.samples), counts=turn >= 0)
        if len(self.samples) >= self.iterations:
            require_no_tails(self.bench)

    def _call(self, index: int, counts: bool) -> None:
        bench, mode = self.bench, self.mode
        self._turns += 1
        number = (self._turns + bench.random.randrange(1, len(bench.sets))) % len(bench.sets)
        drawn = bench.sets[number].take_some(bench.random.choice)
        bench.ready(number, mode, drawn, bench.random.choice(POISONS), fresh=False)
        times = checked_call(bench, mode)
        if not counts:
            return
        self.samples += [own_time(bench, mode, sample) for sample in times]
        if index in self._checked and self._seconds_left > 0:
            if any(item.move.recompute for item in drawn):
                self._seconds_left -= _reference_seconds(bench, number)
            require_outputs(bench, number, mode)


def _reference_seconds(bench: Bench, number: int) -> float:
    """Time how long the judge takes to know what a set's outputs must be, which no worker can prolong."""
    begun = time.perf_counter()
    bench.sets[number].expected()
    return time.perf_counter() - begun


def own_time(bench: Bench, mode: str, sample: float) -> float:
    """Subtract from a launch's time what events around a replay add (measured when the judge starts).

    Eager calls keep it, because they consist of launches. What cannot be a time stays as it is, to be refused.
    """
    if mode != "launch" or sample <= 0:
        return sample
    return min(sample, max(sample - bench.overhead_ns, EVENT_RESOLUTION_NS))


def _checks(bench: Bench, iterations: int) -> int:
    """Limit the number of calls of a trial that are checked."""
    affordable = max(CHECKS_AT_LEAST, CHECK_BYTES // max(1, bench.case.output_bytes()))
    return min(iterations, affordable, CHECKS_AT_MOST)


def record_timing(bench: Bench, mode: str, samples: list[float], expected: int) -> None:
    """Summarise the samples of a mode, and check their median against the judge's clock."""
    timing = summarise(samples, expected)
    bench.sheet.timing[mode] = timing
    cross_check(bench, mode, timing)


def cross_check(bench: Bench, mode: str, timing: Timing) -> None:
    """Make back-to-back calls; timer_disagrees if the claimed median is much shorter than the judge's clock says."""
    claimed, per_call = timing.median_us * 1e3, math.inf
    for _ in range(BURST_ATTEMPTS):
        per_call = min(per_call, _burst_slope(bench, mode, claimed))
        if claimed >= BURST_SHARE * per_call - BURST_SLACK_NS:
            return
    raise Rejected(
        "timer_disagrees",
        f"claims {claimed / 1e3:.1f} us a {mode}; back to back one takes {per_call / 1e3:.1f} us on the judge's clock",
    )


def _burst_slope(bench: Bench, mode: str, claimed_ns: float) -> float:
    """Measure nanoseconds per call from two counts of calls, so that the cost of the request cancels out."""
    few = 2
    many = few + max(4, min(1000, int(BURST_SECONDS * 1e9 / max(claimed_ns, 1e3))))
    best: dict[int, int] = {}
    for count in (few, many, few, many):
        elapsed = bench.burst(mode, count)
        best[count] = min(best.get(count, elapsed), elapsed)
    return (best[many] - best[few]) / (many - few)
