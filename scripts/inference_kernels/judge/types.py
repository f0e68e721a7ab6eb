"""What the judge writes down, as types: the record of a judged workload, and the verdict over all of them."""

from typing import Any, NotRequired, TypedDict


class TimingRecord(TypedDict):
    """Microseconds of one mode (launch or call), `samples` in the order measured (stats.Timing).

    floor_ratio: the median over the floor; None where the floor is 0.
    """

    median_us: float
    p10_us: float
    p90_us: float
    samples: list[float]
    warnings: list[str]
    count: int
    floor_ratio: NotRequired[float | None]


class FloorRecord(TypedDict):
    """Bytes and operations that a call cannot avoid, and the time they take at the device's peaks."""

    bytes: int
    operations: float
    microseconds: float


# A Solution document as it is handed in: nothing of it can be relied on before candidate.require_sound.
RawSolution = dict[str, Any]

# One line of a report. A call, because `class` is a keyword. status: of verdicts.STATUSES; comparisons: the worst of
# each output (core.compare.Comparison); timing: by mode; clocks: `before` and `after`, host load and GPU state;
# went_first: duels only; audit: audits only.
JudgeRecord = TypedDict(
    "JudgeRecord",
    {
        "solution": str,
        "definition": str,
        "workload": str,
        "class": str,
        "axes": dict[str, int],
        "status": str,
        "detail": str,
        "against": str,
        "timed": str,
        "group_axis": str,
        "comparisons": dict[str, dict[str, Any]],
        "timing": dict[str, TimingRecord],
        "notes": list[str],
        "checked_calls": dict[str, int],
        "floor": FloorRecord | None,
        "seed": int,
        "seconds": dict[str, float],
        "clocks": dict[str, dict[str, Any]],
        "environment": dict[str, Any],
        "when": str,
        "hashes": dict[str, str],
        "went_first": NotRequired[bool],
        "audit": NotRequired[dict[str, Any]],
    },
)
# The (name, hash) pairs of a record's `hashes`: records of equal work may stand for each other on the same machine.
Work = frozenset[tuple[str, str]]
# (candidate's, baseline's) record of one workload.
Pair = tuple[JudgeRecord, JudgeRecord]


class Rejection(TypedDict):
    """A workload that the candidate failed, and why."""

    workload: str
    status: str
    detail: str


class LeftOut(TypedDict):
    """A workload that was not judged, why, and what helps: often the command that fetches its tensors."""

    workload: str
    status: str
    detail: str
    remedy: str


class Verdict(TypedDict):
    """The outcome of duels: see duel.verdict. complete: every workload of the task (or of --dev) was judged."""

    accepted: bool
    complete: bool
    judged: int
    not_judged: int
    left_out: list[LeftOut]
    rejected: list[Rejection]
    duels: list[float]
    speedups: dict[str, float]
    groups: dict[str, float]
    geometric_mean: float | None
