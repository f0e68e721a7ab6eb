"""Statistics of time samples. What cannot be a measurement is refused; a poor one earns a warning."""

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from inference_kernels.judge.types import TimingRecord
from inference_kernels.judge.verdicts import Rejected

# Spread between p90 and p10, and drift between the first and the last third, that earn a warning.
SPREAD_WARNING, DRIFT_WARNING = 1.5, 1.05


@dataclass(frozen=True)
class Timing:
    """Microseconds of one mode (launch or call); `samples` in the order measured."""

    median_us: float
    p10_us: float
    p90_us: float
    samples: list[float]
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> TimingRecord:
        return cast(TimingRecord, asdict(self) | {"count": len(self.samples)})


def quantile(ordered: list[float], share: float) -> float:
    """Interpolate linearly between neighbours; `ordered` is sorted and not empty."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(nanoseconds: list[Any], expected: int) -> Timing:
    """Summarise exactly `expected` samples; Rejected (bad_samples) for any that cannot be a time."""
    if len(nanoseconds) != expected:
        raise Rejected("bad_samples", f"{len(nanoseconds)} samples instead of {expected}")
    for sample in nanoseconds:
        if type(sample) not in (int, float) or not math.isfinite(sample) or sample <= 0:
            raise Rejected("bad_samples", f"a sample of {sample!r} ns")
    samples = [sample / 1e3 for sample in nanoseconds]
    ordered = sorted(samples)
    low, middle, high = (quantile(ordered, share) for share in (0.1, 0.5, 0.9))
    return Timing(middle, low, high, samples, warnings(samples, low, high))


def warnings(samples: list[float], low: float, high: float) -> list[str]:
    """Warn of spread (`low` and `high`: p10 and p90) and of drift from the first third to the last."""
    found = []
    if high > SPREAD_WARNING * low:
        found.append(f"spread: p90 is {high / low:.2f} of p10")
    third = len(samples) // 3
    if third >= 3:
        first, last = (quantile(sorted(part), 0.5) for part in (samples[:third], samples[-third:]))
        if max(first, last) > DRIFT_WARNING * min(first, last):
            found.append(f"drift: the last third takes {last / first:.2f} of the first")
    return found


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def median_ratio(over: list[float], under: list[float]) -> float:
    """Take the median ratio of paired samples: they share the host's pace, so their ratio cancels it."""
    return statistics.median(one / other for one, other in zip(over, under, strict=True))
