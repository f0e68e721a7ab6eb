"""AgentX requests as cases of a profile: prompts, forward passes to keep, expected cache hits.

Lengths and shared prefixes come from `agentx_shapes.json`, tokens from the authored text in the tokenizer of the
served model; a seeded checkpoint has none, so its tokens are ids by rule.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from inference_kernels.agentx import shapes
from inference_kernels.agentx.blocks import common_prefix
from inference_kernels.agentx.prompts import (
    AUTHORED_SHA256,
    authored_text,
    base_tokens,
    expected_hit,
    forbidden_ids,
    prompt_token_ids,
    stand_in_tokens,
    token_lcp,
    tokens_sha256,
)
from inference_kernels.agentx.trace import BLOCK_SIZE
from inference_kernels.capture.requests import Keep, Profile, RequestCase
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import read_json
from inference_kernels.models.registry import find_profile
from inference_kernels.seeded.checkpoint import RECIPE_FILE


@dataclass(frozen=True)
class TracedPrompt:
    """A prompt whose tokens follow once the tokenizer is known. length: tokens."""

    request: shapes.Request

    @property
    def length(self) -> int:
        return self.request.input_tokens

    def tokens(self, base: list[int]) -> list[int]:
        return prompt_token_ids(self.request, base)


@dataclass(frozen=True, kw_only=True)
class TracedCase(RequestCase):
    """A case of `agentx_shapes.json`. `cached` says nothing here: see `cached_ranges`."""

    trace: shapes.ShapeCase

    @property
    def outputs(self) -> list[int]:
        """Return the recorded lengths; 1 for a request that generated nothing, as an engine always generates."""
        return [max(1, request.output_tokens) for request in self.trace.requests]


@cache
def served_profile(kind: str, name: str, output_limit: int | None = None) -> Profile:
    """Return the profile with all AgentX cases it can send; the serial ones published for the kind are the default.

    output_limit: cap of every output, so that only decode steps that occur are kept.
    """
    profile = find_profile(kind, name)
    if not profile.phases:
        return profile
    cases = {
        trace.name: traced_case(profile, kind, trace, output_limit)
        for trace in shapes.load_cases().values()
        if trace.runnable
    }
    return replace(profile, cases=cases)


def require_cases(kind: str, names: Iterable[str]) -> None:
    """SchemaError for a name that AgentX does not have, or of which only figures are published."""
    shapes.choose(shapes.load_cases(), names, kind)


def traced_case(profile: Profile, kind: str, trace: shapes.ShapeCase, output_limit: int | None) -> TracedCase:
    before = TracedPrompt(trace.predecessor) if trace.predecessor else None
    case = TracedCase(
        prompts=tuple(map(TracedPrompt, trace.requests)),
        keep={},
        predecessor=before,
        default=trace.mode == "serial" and kind in trace.kinds,
        trace=trace,
    )
    shortest = min(case.outputs) if output_limit is None else min(*case.outputs, output_limit)
    # Prefill gives the first token; the batch is whole until the shortest output is complete.
    return replace(case, keep=steps_to_keep(profile, prefill_passes(profile, trace), shortest - 1))


def steps_to_keep(profile: Profile, prefills: int, decodes: int) -> Keep:
    """Choose the first, middle and last forward pass of each phase, for every definition of the phase."""
    counts = {"prefill": prefills, "decode": decodes}
    return {
        phase: {name: sorted({0, (counts[phase] - 1) // 2, counts[phase] - 1}) for name in names}
        for phase, names in profile.phases.items()
        if counts[phase] > 0
    }


def prefill_passes(profile: Profile, trace: shapes.ShapeCase) -> int:
    """Count the forward passes of the prefill if every cache hit is complete: no run has fewer, so kept ones occur.

    Only shared blocks are counted, not a further page of tokens that agree by accident.
    """
    new = 0
    for index, request in enumerate(trace.requests):
        before = [trace.predecessor] if trace.predecessor else trace.requests[:index]
        shared = max((common_prefix(other.block_runs, request.block_runs) for other in before), default=0)
        new += request.input_tokens - expected_hit(shared * BLOCK_SIZE, request.input_tokens, profile.page_size)
    return ceil(new / profile.flags["chunked_prefill_size"])


class StandIn:
    """Stands in for the tokenizer that a seeded checkpoint lacks. limit: ids lie below it."""

    all_special_ids: tuple[int, ...] = ()

    def __init__(self, limit: int):
        self.limit = limit

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return stand_in_tokens(text, 3, self.limit)


@cache
def base_ids(model_path: Path) -> list[int]:
    """Return the tokens of the authored text by the checkpoint's tokenizer; CaptureError if they cannot be used.

    Those of a seeded checkpoint lie above the ids of begin, end and padding and below all other special ones.
    """
    config = read_json(model_path / "config.json")
    if (model_path / RECIPE_FILE).exists():
        special = [ident for ident in forbidden_ids(StandIn(0), config) if ident > 2]
        tokenizer: Any = StandIn(min([*special, vocabulary(config, model_path)]))
    else:
        tokenizer = load_tokenizer(model_path)
    ids = tokenizer.encode(authored_text(), add_special_tokens=False)
    return base_tokens(ids, forbidden_ids(tokenizer, config), vocabulary(config, model_path))


def load_tokenizer(model_path: Path) -> Any:
    """Load the tokenizer; CaptureError if transformers cannot read one without running the folder's code."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise CaptureError(
            expected="a tokenizer",
            found=" ".join(str(error).split())[:200],
            where=str(model_path),
            remedy="download the tokenizer files of the checkpoint",
        ) from error


def vocabulary(config: dict[str, Any], model_path: Path) -> int:
    """Return the number of token ids of the text model."""
    for part in (config, config.get("text_config", {})):
        if "vocab_size" in part:
            return part["vocab_size"]
    raise CaptureError(
        expected="vocab_size",
        found="no such key",
        where=str(model_path / "config.json"),
        remedy="serve the checkpoint as it was published",
    )


def shared_tokens(prompts: list[list[int]], before: list[int] | None) -> list[int]:
    """Return per prompt the longest prefix it shares with the predecessor, else with another prompt."""
    others = [[before] if before else prompts[:index] + prompts[index + 1 :] for index in range(len(prompts))]
    return [max((token_lcp(other, ids) for other in known), default=0) for ids, known in zip(prompts, others)]


def cached_ranges(
    profile: Profile, case: RequestCase, prompts: list[list[int]], before: list[int] | None
) -> list[tuple[int, int]]:
    """Return the smallest and largest number of prompt tokens from the cache, per request.

    After a predecessor: the whole pages of the shared prefix, less the profile's slack. In a group the hit
    depends on when each request is admitted, so only the largest is known.
    """
    if not isinstance(case, TracedCase):
        return [case.cached] * len(prompts)
    hits = [
        expected_hit(shared, len(ids), profile.page_size)
        for shared, ids in zip(shared_tokens(prompts, before), prompts)
    ]
    return [(max(0, hit - profile.hit_slack) if before else 0, hit) for hit in hits]


def trace_record(
    profile: Profile, case: TracedCase, base: list[int], prompts: list[list[int]], before: list[int] | None
) -> dict[str, Any]:
    """Return what the records say of a traced request besides lengths and the prompts' hash."""
    return {
        "trace": case.trace.record_fields(),
        "text_sha256": AUTHORED_SHA256,
        "base_sha256": tokens_sha256(base),
        "page_size": profile.page_size,
        "shared_prompt_tokens": shared_tokens(prompts, before),
        "expected_cached_tokens": [list(pair) for pair in cached_ranges(profile, case, prompts, before)],
    }
