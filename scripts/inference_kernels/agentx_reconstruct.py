"""The cases as far as they are published, without the trace; block ids are our own.

Such a case has the published lengths and, by its own ids, the published cache hit; that its prefix was
recorded in a session is lost, so it is labelled `reconstructed` and never `recorded`.
"""

from typing import Any

from . import agentx_published as known
from .agentx_blocks import shared_matrix
from .agentx_entries import case_entry, selection_entry, trace_entry
from .agentx_published import Known
from .agentx_trace import BLOCK_SIZE

# Ids of blocks that are not shared start at a multiple of this.
OWN_BLOCKS = 1_000_000
# Leading blocks that the members of overlap_p50 share: the least that agrees with the published row counts.
GROUP_SHARED = 536


def published_shapes() -> dict[str, Any]:
    """Content of agentx_shapes.json for the pinned trace when none of its rows was read."""
    trace = trace_entry(
        known.DATASET, known.REVISION, known.FILE, known.BYTES, known.SHA256, known.LICENCE, available=False
    )
    return {
        "schema_version": 1,
        "trace": trace,
        "selection": selection_entry("session_peak", "absolute"),
        "population": known.POPULATION,
        "cases": [_case(name, case) for name, case in known.CASES.items()],
    }


def _case(name: str, case: Known) -> dict[str, Any]:
    if not (case.inputs and case.outputs):
        return case_entry(name, case, "published_figures")
    entry = case_entry(name, case, "reconstructed")
    session = f"reconstructed:{name}"
    shared = GROUP_SHARED if case.mode == "group" else case.window[0] if case.window else 0
    for member, (tokens, output) in enumerate(zip(case.inputs, case.outputs), 1):
        own = [member * OWN_BLOCKS if shared else 0, tokens // BLOCK_SIZE - shared]
        entry["requests"].append(_request(session, [[0, shared], own] if shared else [own], output))
    if case.mode == "group":
        entry["group_shared_prefix_blocks"] = shared_matrix([r["hash_runs"] for r in entry["requests"]])
        return entry
    entry["shared_prefix_blocks"] = shared
    if shared:
        entry["predecessor"] = _request(session, [[0, shared]], None)
    return entry


def _request(session: str, runs: list[list[int]], output: int | None) -> dict[str, Any]:
    blocks = sum(count for _, count in runs)
    return {
        "session_id": session,
        "line": None,
        "request_index": None,
        "outer": None,
        "inner": None,
        "role": None,
        "model": None,
        "blocks": blocks,
        "input_tokens": BLOCK_SIZE * blocks,
        "output_tokens": output,
        "hash_runs": runs,
        "start_s": None,
        "end_s": None,
    }
