"""What is known of the AgentX trace without reading it: its identity, its figures, the published cases.

Sources: the card and the readers of the data set, and the figures published with the capture runs: input and
output lengths, one cache hit, and the row counts of grouped GEMMs, from which the other hits follow.
"""

from dataclasses import dataclass

DATASET = "semianalysisai/cc-traces-weka-062126"
REVISION = "23f152f6f0f9399a85901b89a6458def0ef16729"
FILE = "traces.jsonl"
BYTES = 1_847_151_435
SHA256 = "29b6a19e751ff5230771519aab755f80a0f43a4ba9cf96b72d3a6a437ec99276"
LICENCE = "Apache-2.0"
KEYS = frozenset({"id", "models", "block_size", "hash_id_scope", "requests"})

# Longest sequence, input and output together, that the served model takes.
CONTEXT_LIMITS = {"deepseek41": 1_048_576, "qwen-next": 262_144}

# Figures of `agentx_population.figures`, as published by others.
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

RUNS = "figures published with the capture runs"
DEEPSEEK, QWEN, BOTH = ("deepseek41",), ("qwen-next",), ("deepseek41", "qwen-next")


@dataclass(frozen=True)
class Known:
    """What is published of a case. Empty or None: not published.

    certain: input and output are published for this very case, so a selection with another input is wrong.
    window: numbers of shared blocks that agree with the published hits and row counts (pages of 256 tokens).
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
        """The `published` part of a case's entry."""
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
