"""Which requests a rented capture sends, and how long it may take: the time limit comes from the case list.

The rates are assumptions, chosen low: an instrumented engine runs eagerly and every call is replayed. They
bound the time that is paid for; they are no performance figures.
"""

from dataclasses import dataclass
from math import ceil

from inference_kernels.agentx.published import CONTEXT_LIMITS
from inference_kernels.agentx.shapes import Case, load_cases
from inference_kernels.cloud.spec import MODELS
from inference_kernels.core.errors import CaptureError
from inference_kernels.engine.agentx import served_profile
from inference_kernels.engine.diffusion_settings import KINDS
from inference_kernels.models.registry import find_profile

DAY_SECONDS = 24 * 3600  # the longest time limit of a Modal container: https://modal.com/docs/guide/timeouts
MARGIN, ROUND_SECONDS = 2, 600
START_SECONDS, LOAD_SECONDS_PER_GB = 600, 4
PREFILL_TOKENS_PER_SECOND, SECONDS_PER_OUTPUT_TOKEN = 500, 0.5
TEXT_VALIDATION_SECONDS = 900
UNKNOWN_OUTPUT_TOKENS = 2000
MEDIA_SECONDS = {"image": 300, "ltx25": 1800}
DOWNLOAD_SECONDS_PER_GB, HASH_SECONDS_PER_GB = 10, 2


@dataclass(frozen=True)
class Planned:
    """One case. seconds: estimate. missing: why it cannot be sent from this checkout; empty if it can."""

    name: str
    seconds: float
    missing: str = ""


def planned_cases(
    kind: str, profile: str, chosen: list[str] | None, num_outputs: int, output_limit: int | None, has_image: bool
) -> list[Planned]:
    """The chosen cases of a kind in its own order, by default all that one command sends.

    has_image: there is a reference image. CaptureError for a name that the kind does not have.
    """
    if not MODELS[kind].text:
        cases = KINDS[kind].cases
        names = _choose(list(cases), chosen, list(cases))
        begun = [None, *names] + [case.edits for case in cases.values() if has_image]
        return [
            Planned(
                name,
                MEDIA_SECONDS[kind] * num_outputs,
                "" if cases[name].edits in begun else "it starts from an image: pass --reference-image",
            )
            for name in names
        ]
    if profile == "seeded":
        cases = find_profile(kind, profile).cases
        names = _choose(list(cases), chosen, [name for name, case in cases.items() if case.default])
        return [Planned(name, TEXT_VALIDATION_SECONDS) for name in names]
    traced = {name: case for name, case in load_cases().items() if kind in case.kinds}
    serial = [name for name, case in traced.items() if case.mode == "serial"]
    served = served_profile(kind, profile).cases
    return [
        Planned(name, traced_seconds(kind, traced[name], output_limit), _missing(traced[name], served))
        for name in _choose(list(traced), chosen, serial)
    ]


def _choose(known: list[str], chosen: list[str] | None, default: list[str]) -> list[str]:
    for name in chosen or []:
        if name not in known:
            raise CaptureError(
                expected=f"one of {', '.join(known)}", found=name, where="--case", remedy="correct the name"
            )
    return [name for name in known if name in (chosen or default)]


def _missing(case: Case, served: dict) -> str:
    if not case.runnable:
        return "its block ids are not in agentx_shapes.json: run select_agentx_requests.py on the trace"
    return "" if case.name in served else "the published profile of capture_llm.py does not serve it"


def traced_seconds(kind: str, case: Case, output_limit: int | None) -> float:
    """Time of one traced case; unknown inputs count as the longest context, cached prefixes as computed."""
    members = len(case.requests) or case.published.get("members") or 1
    inputs = (
        [request.input_tokens for request in case.requests]
        or case.published.get("input_tokens")
        or [CONTEXT_LIMITS[kind]] * members
    )
    outputs = (
        [request.output_tokens for request in case.requests]
        or case.published.get("output_tokens")
        or [UNKNOWN_OUTPUT_TOKENS]
    )
    longest = max(outputs) if output_limit is None else min(max(outputs), output_limit)
    before = case.predecessor.input_tokens if case.predecessor else 0
    return (
        (sum(inputs) + before) / PREFILL_TOKENS_PER_SECOND
        + longest * SECONDS_PER_OUTPUT_TOKEN
        + TEXT_VALIDATION_SECONDS
    )


def capture_seconds(kind: str, cases: list[Planned]) -> int:
    load = START_SECONDS + MODELS[kind].gigabytes * LOAD_SECONDS_PER_GB
    return rounded(load + sum(case.seconds for case in cases))


def prepare_seconds(kind: str) -> int:
    return rounded(START_SECONDS + MODELS[kind].gigabytes * (DOWNLOAD_SECONDS_PER_GB + HASH_SECONDS_PER_GB))


def rounded(seconds: float) -> int:
    """With the margin, to whole tens of minutes."""
    return ceil(seconds * MARGIN / ROUND_SECONDS) * ROUND_SECONDS


def require_one_day(seconds: int) -> int:
    if seconds > DAY_SECONDS:
        raise CaptureError(
            expected="at most 24 hours in one container",
            found=f"{seconds / 3600:.1f} hours",
            where="time limit",
            remedy="split the cases over several --name, or set --timeout-hours",
        )
    return seconds
