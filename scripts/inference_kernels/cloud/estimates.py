"""Choose the cases of a rented capture and its time limit, which grows with the cases and outputs.

The times per case (`Published.case_seconds`) and per GB are generous allowances, not measurements: they bound what is
paid for. `--timeout-hours` overrides the sum; a capture that ran out of time goes on after its last finished case.
"""

from dataclasses import dataclass
from math import ceil

from inference_kernels.agentx.shapes import ShapeCase, load_cases
from inference_kernels.core.errors import CaptureError
from inference_kernels.engine.agentx import served_profile
from inference_kernels.models.registry import MEDIA, PUBLISHED, find_profile

DAY_SECONDS = 24 * 3600  # the longest time limit of a Modal container: https://modal.com/docs/guide/timeouts
ROUND_SECONDS, START_SECONDS = 600, 1200
SEEDED_CASE_SECONDS = 1800
LOAD_SECONDS_PER_GB, PREPARE_SECONDS_PER_GB = 8, 24


@dataclass(frozen=True)
class Planned:
    """One case. seconds: granted. missing: why it cannot be sent from this checkout; empty if it can."""

    name: str
    seconds: int
    missing: str = ""


def planned_cases(
    kind: str, profile: str, chosen: list[str] | None, num_outputs: int, has_image: bool
) -> list[Planned]:
    """Return the chosen cases of a kind in its own order, by default all that one command sends.

    has_image: there is a reference image. CaptureError for a name that the kind does not have.
    """
    seconds = PUBLISHED[kind].case_seconds
    if kind in MEDIA:
        cases = MEDIA[kind].cases
        names = _choose(list(cases), chosen, list(cases))
        begun = [None, *names] + [case.edits for case in cases.values() if has_image]
        without = "it starts from an image: pass --reference-image"
        return [Planned(name, seconds * num_outputs, "" if cases[name].edits in begun else without) for name in names]
    if profile == "seeded":
        cases = find_profile(kind, profile).cases
        names = _choose(list(cases), chosen, [name for name, case in cases.items() if case.default])
        return [Planned(name, SEEDED_CASE_SECONDS) for name in names]
    traced = {name: case for name, case in load_cases().items() if kind in case.kinds}
    serial = [name for name, case in traced.items() if case.mode == "serial"]
    served = served_profile(kind, profile).cases
    names = _choose(list(traced), chosen, serial)
    return [Planned(name, seconds, _missing(traced[name], served)) for name in names]


def _choose(known: list[str], chosen: list[str] | None, default: list[str]) -> list[str]:
    for name in chosen or []:
        if name not in known:
            raise CaptureError(
                expected=f"one of {', '.join(known)}", found=name, where="--case", remedy="correct the name"
            )
    return [name for name in known if name in (chosen or default)]


def _missing(case: ShapeCase, served: dict) -> str:
    if not case.runnable:
        return "its block ids are not in agentx_shapes.json: run select_agentx_requests.py on the trace"
    return "" if case.name in served else "the published profile of capture_llm.py does not serve it"


def capture_seconds(kind: str, cases: list[Planned]) -> int:
    load = START_SECONDS + PUBLISHED[kind].gigabytes * LOAD_SECONDS_PER_GB
    return rounded(load + sum(case.seconds for case in cases))


def prepare_seconds(kind: str) -> int:
    return rounded(START_SECONDS + PUBLISHED[kind].gigabytes * PREPARE_SECONDS_PER_GB)


def rounded(seconds: float) -> int:
    """Round up to whole tens of minutes."""
    return ceil(seconds / ROUND_SECONDS) * ROUND_SECONDS


def require_one_day(seconds: int) -> int:
    """Return the time limit; CaptureError if it is longer than one container can run."""
    if seconds > DAY_SECONDS:
        raise CaptureError(
            expected="at most 24 hours in one container",
            found=f"{seconds / 3600:.1f} hours",
            where="time limit",
            remedy="split the cases over several --name, or set --timeout-hours",
        )
    return seconds
