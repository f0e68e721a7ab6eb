"""The entries of agentx_shapes.json that a selection and a reconstruction write alike."""

from typing import Any

from .agentx_published import CONTEXT_LIMITS, Known
from .agentx_trace import BLOCK_SIZE

RULES_VERSION = "1"


def trace_entry(
    dataset: str, revision: str, file: str, size: int, sha256: str, licence: str | None, available: bool
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "revision": revision,
        "file": file,
        "bytes": size,
        "sha256": sha256,
        "licence": licence,
        "block_size": BLOCK_SIZE,
        "hash_id_scope": "local",
        "content_available": available,
    }


def selection_entry(overlap_statistic: str, nested_times: str) -> dict[str, Any]:
    return {
        "rules_version": RULES_VERSION,
        "percentile": "nearest_rank",
        "context_limits": CONTEXT_LIMITS,
        "overlap_statistic": overlap_statistic,
        "nested_times": nested_times,
    }


def case_entry(name: str, case: Known, provenance: str) -> dict[str, Any]:
    """An entry without requests."""
    entry = {
        "name": name,
        "kinds": list(case.kinds),
        "mode": case.mode,
        "provenance": provenance,
        "requests": [],
        "predecessor": None,
        "shared_prefix_blocks": None,
        "published": case.facts(),
        "matched_published": None,
    }
    if case.window:
        entry["shared_prefix_window"] = list(case.window)
    return entry | ({"note": case.note} if case.note else {})
