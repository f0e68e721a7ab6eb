"""Measure a whole trace: percentiles, cache reuse, requests in flight. Standard library only."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from inference_kernels.agentx.trace import BLOCK_SIZE, Session, TraceRequest

# The subset that the publisher offers as "256k": requests whose input and output fit together.
SUBSET_TOKENS = 256_000
# One published figure counts the requests up to this input length.
COUNTED_INPUT_TOKENS = 131_200


def percentile(values: Iterable[int], percent: int) -> int:
    """Return the nearest rank: of N ascending values number ceil(percent / 100 * N); 100 is the largest."""
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1]


@dataclass(frozen=True)
class Trace:
    """All sessions of a trace."""

    sessions: tuple[Session, ...]

    @cached_property
    def requests(self) -> list[TraceRequest]:
        """List the requests of all sessions."""
        return [request for session in self.sessions for request in session.requests]

    @cached_property
    def subset(self) -> list[TraceRequest]:
        """List the requests of the publisher's subset."""
        return [request for request in self.requests if request.input_tokens + request.output_tokens <= SUBSET_TOKENS]

    @cached_property
    def peaks(self) -> list[int]:
        """Return per session the largest number of requests in flight."""
        return [len(peak_group(session)) for session in self.sessions]


class Flight:
    """Requests in flight, start <= time < end. A request without duration is never in flight."""

    def __init__(self, requests: Iterable[TraceRequest]):
        self.live = [request for request in requests if request.end > request.start]
        self.starts = sorted(request.start for request in self.live)
        self.ends = sorted(request.end for request in self.live)

    def count(self, time: float) -> int:
        """Count the requests in flight at a time."""
        return bisect_right(self.starts, time) - bisect_right(self.ends, time)

    def group(self, time: float) -> list[TraceRequest]:
        """List the requests in flight at a time, by start and place in the session."""
        flying = [request for request in self.live if request.start <= time < request.end]
        return sorted(flying, key=lambda request: (request.start, request.index))


def peak_group(session: Session) -> list[TraceRequest]:
    """List the requests in flight at the session's first peak."""
    flight = Flight(session.requests)
    if not flight.live:
        return []
    return flight.group(max(flight.starts, key=lambda time: (flight.count(time), -time)))


def in_flight_at_starts(session: Session) -> list[int]:
    """Count per request of the session how many are in flight when it starts, itself included."""
    flight = Flight(session.requests)
    return [flight.count(request.start) + (request.end <= request.start) for request in session.requests]


def figures(trace: Trace) -> dict[str, int | None]:
    """Compute the population's figures, in tokens unless the name says otherwise; None for an empty set."""
    main = [request for request in trace.requests if request.role == "main"]
    nested = [request for request in trace.requests if request.role == "subagent"]
    inputs = [request.input_tokens for request in trace.requests]
    outputs = [request.output_tokens for request in trace.requests]
    result = {
        "sessions": len(trace.sessions),
        "sessions_with_subagents": sum(session.markers > 0 for session in trace.sessions),
        "subagent_groups": sum(session.markers for session in trace.sessions),
        "requests": len(trace.requests),
        "requests_main": len(main),
        "requests_nested": len(nested),
        "requests_up_to_131200": sum(tokens <= COUNTED_INPUT_TOKENS for tokens in inputs),
        "requests_of_whole_blocks": sum(
            request.input_tokens == BLOCK_SIZE * request.blocks for request in trace.requests
        ),
        "input_sum": sum(inputs),
        "output_sum": sum(outputs),
        "block_runs_max": max(len(request.runs) for request in trace.requests),
        "subset_256000_requests": len(trace.subset),
        "subset_256000_requests_main": sum(request.role == "main" for request in trace.subset),
        "subset_256000_requests_nested": sum(request.role == "subagent" for request in trace.subset),
        "subset_256000_total_max": max(
            (request.input_tokens + request.output_tokens for request in trace.subset), default=None
        ),
    }
    for reuse in ("cold", "partial", "full"):
        result[f"requests_{reuse}"] = sum(request.reuse == reuse for request in trace.requests)
    percentiles = {
        "input": (inputs, (50, 90, 99, 100)),
        "output": (outputs, (50, 100)),
        "main_blocks": ([request.blocks for request in main], (50,)),
        "nested_blocks": ([request.blocks for request in nested], (50,)),
        "main_shared_blocks": ([request.shared for request in main], (50,)),
        "nested_shared_blocks": ([request.shared for request in nested], (50,)),
        "subset_256000_input": ([request.input_tokens for request in trace.subset], (50, 90, 99, 100)),
        "session_peak_requests": (trace.peaks, (50, 95, 100)),
    }
    for name, (values, percents) in percentiles.items():
        for percent in percents:
            suffix = "max" if percent == 100 else f"p{percent}"
            result[f"{name}_{suffix}"] = percentile(values, percent) if values else None
    return result
