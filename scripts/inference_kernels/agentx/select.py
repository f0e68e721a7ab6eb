"""Choose the cases from a trace. Ties go to what is published, then to the order of the file.

The published runs name the cases and some lengths and outputs. Their selection script is not public, so the
rules are ours; `matched_published` says per case whether it has all the figures published of it.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from inference_kernels.agentx.blocks import TraceError, shared_matrix
from inference_kernels.agentx.population import Trace, in_flight_at_starts, peak_group, percentile
from inference_kernels.agentx.published import CASES, CONTEXT_LIMITS, Known, case_entry
from inference_kernels.agentx.trace import Session, TraceRequest

# Tokens that the engine keeps free after a request.
SPARE_TOKENS = 7
LEAST_COLD_MAIN_OUTPUT, LEAST_SHORT_OUTPUT, LEAST_FULL_REUSE_OUTPUT, LONG_OUTPUT = 1_024, 64, 16, 7_948
OVERLAP_PERCENTS = {"overlap_p50": 50, "overlap_p95": 95, "overlap_p100": 100}
# Names for another trace than the pinned one: its percentiles are not AgentX's.
OTHER = "other_"

Requests = list[TraceRequest]


def _nearest(requests: Requests, value: int, of: Callable[[TraceRequest], int] | None = None) -> Requests:
    of = of or (lambda request: request.input_tokens)
    least = min((abs(of(request) - value) for request in requests), default=0)
    return [request for request in requests if abs(of(request) - value) == least]


def _partial_at(requests: Requests, population: Requests, percent: int) -> Requests:
    """List requests of exactly the percentile's input length that reuse a part of their prompt."""
    if not population:
        return []
    value = percentile((request.input_tokens for request in population), percent)
    return [request for request in requests if request.input_tokens == value and request.reuse == "partial"]


def _short_request(requests: Requests, trace: Trace) -> Requests:
    return _nearest([r for r in requests if r.reuse == "cold" and r.output_tokens >= LEAST_SHORT_OUTPUT], 0)


def _cold_main(requests: Requests, trace: Trace) -> Requests:
    return _nearest(
        [
            r
            for r in requests
            if r.role == "main" and r.reuse == "cold" and r.index == 0 and r.output_tokens >= LEAST_COLD_MAIN_OUTPUT
        ],
        0,
    )


def _prefix_reuse(requests: Requests, trace: Trace) -> Requests:
    near = _nearest([r for r in requests if r.reuse == "partial"], _subset_median(trace))
    best = max((Fraction(r.shared, r.blocks) for r in near), default=0)
    return [r for r in near if Fraction(r.shared, r.blocks) == best]


def _full_prefix_reuse(requests: Requests, trace: Trace) -> Requests:
    full = [r for r in requests if r.reuse == "full" and r.output_tokens >= LEAST_FULL_REUSE_OUTPUT]
    return _nearest(full, _subset_median(trace))


def _long_response(requests: Requests, trace: Trace) -> Requests:
    return _nearest(requests, LONG_OUTPUT, lambda request: request.output_tokens)


def _subagent_first(requests: Requests, trace: Trace) -> Requests:
    first = [r for r in trace.requests if r.role == "subagent" and r.inner == 0]
    if not first:
        return []
    median = percentile((r.input_tokens for r in first), 50)
    return _nearest([r for r in requests if r.role == "subagent" and r.inner == 0], median)


def _subset_median(trace: Trace) -> int:
    return percentile((r.input_tokens for r in trace.subset), 50) if trace.subset else 0


RULES: dict[str, Callable[[Requests, Trace], Requests]] = {
    "short_request": _short_request,
    "cold_main": _cold_main,
    "full_context_p50": lambda requests, trace: _partial_at(requests, trace.requests, 50),
    "full_context_p90": lambda requests, trace: _partial_at(requests, trace.requests, 90),
    "full_context_max": lambda requests, trace: _partial_at(requests, trace.requests, 100),
    "context_p50": lambda requests, trace: _partial_at(requests, trace.subset, 50),
    "context_p90": lambda requests, trace: _partial_at(requests, trace.subset, 90),
    "context_p99": lambda requests, trace: _partial_at(requests, trace.subset, 99),
    "prefix_reuse": _prefix_reuse,
    "full_prefix_reuse": _full_prefix_reuse,
    "long_response": _long_response,
    "subagent_first": _subagent_first,
}


def select_cases(trace: Trace, pinned: bool) -> tuple[list[dict[str, Any]], str, list[str]]:
    """Return (entries, overlap statistic, names of cases without a request). pinned: use what is published."""
    statistic, sizes = overlap_sizes(trace, pinned)
    feasible = {
        limit: [request for session in trace.sessions for request in session.requests if _fits(request, session, limit)]
        for limit in CONTEXT_LIMITS.values()
    }
    sessions = {session.ident: session for session in trace.sessions}
    entries, empty = [], []
    for name, known in CASES.items():
        shown, known = (name, known) if pinned else (OTHER + name, Known(known.kinds, known.mode))
        limit = min(CONTEXT_LIMITS[kind] for kind in known.kinds)
        if known.mode == "group":
            entry = _group(shown, known, trace, sizes[name], limit)
        else:
            entry = _serial(shown, known, RULES[name](feasible[limit], trace), sessions)
        if entry:
            entries.append(entry)
        else:
            empty.append(shown)
    return entries, statistic, empty


def overlap_sizes(trace: Trace, pinned: bool) -> tuple[str, dict[str, int]]:
    """Return a statistic and its percentiles: the group sizes of the overlap cases.

    The statistic is the peak of each session, unless only another one gives the published sizes.
    """
    counts = [count for session in trace.sessions for count in in_flight_at_starts(session)]
    statistics = {
        "session_peak": trace.peaks,
        "request_overlap": counts,
        "request_overlap_ge2": [count for count in counts if count >= 2],
    }
    sizes = {
        statistic: {name: percentile(values, percent) for name, percent in OVERLAP_PERCENTS.items()}
        for statistic, values in statistics.items()
        if values
    }
    published = {name: CASES[name].members for name in OVERLAP_PERCENTS}
    fitting = [statistic for statistic in sizes if pinned and sizes[statistic] == published]
    statistic = fitting[0] if fitting else "session_peak"
    return statistic, sizes[statistic]


def _fits(request: TraceRequest, session: Session, limit: int) -> bool:
    """Tell whether the request, and its predecessor with one output token, fit the context."""
    before = None if request.predecessor is None else session.requests[request.predecessor]
    return request.input_tokens + request.output_tokens + SPARE_TOKENS <= limit and (
        before is None or before.input_tokens + 1 + SPARE_TOKENS <= limit
    )


def _serial(name: str, known: Known, tied: Requests, sessions: dict[str, Session]) -> dict[str, Any] | None:
    if not tied:
        return _missing(name, known)
    low, high = known.window or (0, math.inf)
    chosen = min(tied, key=lambda r: (r.output_tokens not in known.outputs, not low <= r.shared <= high, r.ordinal))
    if known.certain and chosen.input_tokens not in known.inputs:
        raise _unlike(name, f"an input of {known.inputs[0]:,} tokens", f"{chosen.input_tokens:,}")
    entry = case_entry(name, known, "recorded") | {
        "requests": [_request(chosen)],
        "candidates": len(tied),
        "shared_prefix_blocks": chosen.shared,
        "matched_published": _matched(known, [chosen]),
    }
    if chosen.predecessor is not None:
        before = sessions[chosen.session].requests[chosen.predecessor]
        entry |= {"predecessor": _request(before), "predecessor_same_model": before.model == chosen.model}
    return entry


def _group(name: str, known: Known, trace: Trace, size: int, limit: int) -> dict[str, Any] | None:
    groups = [peak_group(session) for session, peak in zip(trace.sessions, trace.peaks) if 0 < peak == size]
    tied = [group for group in groups if all(r.input_tokens + r.output_tokens + SPARE_TOKENS <= limit for r in group)]
    if not tied:
        return None
    outputs = sorted(known.outputs)
    chosen = min(tied, key=lambda group: (sorted(r.output_tokens for r in group) != outputs, group[0].line))
    return case_entry(name, known, "recorded") | {
        "requests": [_request(request) for request in chosen],
        "candidates": len(tied),
        "group_shared_prefix_blocks": shared_matrix([request.runs for request in chosen]),
        "matched_published": _matched(known, chosen),
    }


def _missing(name: str, known: Known) -> None:
    if known.certain:
        raise _unlike(name, f"a request of {known.inputs[0]:,} tokens", "none that the rule allows")


def _unlike(name: str, expected: str, found: str) -> TraceError:
    return TraceError(
        expected=f"{expected}, as published",
        found=found,
        where=f"case {name}",
        remedy="the rule of this case is not the published one: correct it in agentx/select.py",
    )


def _matched(known: Known, chosen: Requests) -> bool | None:
    """Tell whether the selection has every published figure; None if none is published."""
    checks = []
    if known.inputs:
        checks.append(sorted(known.inputs) == sorted(r.input_tokens for r in chosen))
    if known.outputs:
        checks.append(sorted(known.outputs) == sorted(r.output_tokens for r in chosen))
    if known.window:
        checks.append(known.window[0] <= chosen[0].shared <= known.window[1])
    if known.members:
        checks.append(known.members == len(chosen))
    return all(checks) if checks else None


def _request(request: TraceRequest) -> dict[str, Any]:
    return {
        "session_id": request.session,
        "line": request.line,
        "request_index": request.index,
        "outer": request.outer,
        "inner": request.inner,
        "role": request.role,
        "model": request.model,
        "blocks": request.blocks,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "hash_runs": [list(run) for run in request.runs],
        "start_s": request.start,
        "end_s": request.end,
    }
