"""What is published of the AgentX trace: constants, the entries of agentx_shapes.json, and a reconstruction.

Constants: the trace's identity, its figures and the published cases. Sources: the data set's card and readers,
and the figures published with the capture runs, namely input and output lengths, one cache hit, and the row
counts of grouped GEMMs, from which the other hits follow. Entries: how trace, selection and cases are written,
also by agentx/select.py. Reconstruction: requests made up to fit the published figures, without the trace.
"""

from dataclasses import dataclass
from typing import Any

from inference_kernels.agentx.blocks import shared_matrix
from inference_kernels.agentx.trace import BLOCK_SIZE

DATASET = "semianalysisai/cc-traces-weka-062126"
REVISION = "23f152f6f0f9399a85901b89a6458def0ef16729"
FILE = "traces.jsonl"
BYTES = 1_847_151_435
SHA256 = "29b6a19e751ff5230771519aab755f80a0f43a4ba9cf96b72d3a6a437ec99276"
LICENCE = "Apache-2.0"
RULES_VERSION = "1"
KEYS = frozenset({"id", "models", "block_size", "hash_id_scope", "requests"})

# Longest sequence, input and output together, that the served model takes.
CONTEXT_LIMITS = {"deepseek41": 1_048_576, "qwen-next": 262_144}

# Figures of agentx/population.py, as published by others.
POPULATION = {
    "sessions": 393,
    "sessions_with_subagents": 175,
    "subagent_groups": 1_697,
    "requests": 98_827,
    "requests_main": 56_798,
    "requests_nested": 42_029,
    "requests_up_to_131200": 46_442,
    "requests_of_whole_blocks": 98_827,
    "input_sum": 21_635_381_376,
    "output_sum": 106_474_498,
    "input_p50": 142_016,
    "input_p90": 549_504,
    "input_p99": 863_424,
    "input_max": 989_824,
    "output_p50": 444,
    "main_blocks_p50": 3_970,
    "nested_blocks_p50": 1_000,
    "subset_256000_requests": 68_266,
    "subset_256000_requests_main": 28_444,
    "subset_256000_requests_nested": 39_822,
    "subset_256000_input_p50": 88_768,
    "subset_256000_total_max": 255_999,
}

# Reconstruction: ids of blocks that are not shared start at a multiple of OWN_BLOCKS. GROUP_SHARED leading
# blocks are common to the members of overlap_p50: the least that agrees with the published row counts.
OWN_BLOCKS, GROUP_SHARED = 1_000_000, 536

RUNS = "figures published with the capture runs"
DEEPSEEK, QWEN, BOTH = ("deepseek41",), ("qwen-next",), ("deepseek41", "qwen-next")


@dataclass(frozen=True)
class Known:
    """What is published of a case. Empty or None: not published.

    certain: input and output are published for exactly this case, so a selection with another input is wrong.
    window: range of shared blocks that agrees with the published hits and row counts (pages of 256 tokens).
    """

    kinds: tuple[str, ...]
    mode: str = "serial"
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    cached: int | None = None
    window: tuple[int, int] | None = None
    members: int | None = None
    certain: bool = False
    source: str | None = None
    note: str | None = None

    def facts(self) -> dict:
        """Return the `published` part of a case's entry."""
        facts = {
            "input_tokens": list(self.inputs),
            "output_tokens": list(self.outputs),
            "cached_tokens": self.cached,
            "members": self.members,
            "source": self.source,
        }
        return {name: value for name, value in facts.items() if value not in (None, [])}


def _serial(kinds: tuple[str, ...], tokens: int, output: int, **known) -> Known:
    return Known(kinds, inputs=(tokens,), outputs=(output,), certain=True, source=RUNS, **known)


CASES = {
    "short_request": _serial(BOTH, 128, 107),
    "cold_main": _serial(BOTH, 2_944, 1_813),
    "full_context_p50": _serial(DEEPSEEK, 142_016, 90, window=(2_212, 2_215)),
    "full_context_p90": _serial(DEEPSEEK, 549_504, 6_765, window=(8_468, 8_471), cached=541_952),
    "full_context_max": _serial(DEEPSEEK, 989_824, 1_204, window=(15_428, 15_431)),
    "context_p50": Known(QWEN, inputs=(88_768,), source="card of the 256k variant of the data set"),
    "context_p90": Known(QWEN),
    "context_p99": Known(
        QWEN,
        inputs=(249_088,),
        source=RUNS,
        note="249,088 is published as the longest input; the percentile is inferred",
    ),
    "prefix_reuse": Known(QWEN),
    "full_prefix_reuse": Known(QWEN),
    "long_response": Known(QWEN, outputs=(7_948,), source=RUNS),
    "subagent_first": Known(QWEN),
    "overlap_p50": Known(BOTH, "group", (35_008, 35_392, 35_456), (120, 108, 126), members=3, source=RUNS),
    "overlap_p95": Known(QWEN, "group", members=9, source=RUNS),
    "overlap_p100": Known(QWEN, "group", members=23, source=RUNS),
}


def trace_entry(
    dataset: str, revision: str, file: str, size: int, sha256: str, licence: str | None, available: bool
) -> dict[str, Any]:
    """Write the entry of a trace. available: its rows were read."""
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
    """Write the entry of the selection's rules."""
    return {
        "rules_version": RULES_VERSION,
        "percentile": "nearest_rank",
        "context_limits": CONTEXT_LIMITS,
        "overlap_statistic": overlap_statistic,
        "nested_times": nested_times,
    }


def case_entry(name: str, case: Known, provenance: str) -> dict[str, Any]:
    """Write the entry of a case, without requests."""
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


def published_shapes() -> dict[str, Any]:
    """Write the content of agentx_shapes.json for the pinned trace without reading it."""
    trace = trace_entry(DATASET, REVISION, FILE, BYTES, SHA256, LICENCE, available=False)
    return {
        "schema_version": 1,
        "trace": trace,
        "selection": selection_entry("session_peak", "absolute"),
        "population": POPULATION,
        "cases": [_case(name, case) for name, case in CASES.items()],
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
