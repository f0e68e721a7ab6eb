"""Requests of language-model captures: prompts by an integer rule, groups of them, forward passes to keep.

A `Profile` is what one model captures for one purpose; models/<model>/spec.py has them. Standard library only.
"""

from dataclasses import dataclass, field, replace
from typing import Any

# Forward passes to keep, from 0: "prefill", "decode" (of all requests) or "decode N" (of N of them) ->
# definition -> numbers. Each of the three is counted separately.
Keep = dict[str, dict[str, list[int]]]
TOKEN_RULE = (
    "arithmetic-v2: id = 3 + (7 i^2 + 613 (2 s + 1) i + 7919 s + 1009 floor(i / m)) mod m, s the prompt's number"
)


@dataclass(frozen=True)
class Prompt:
    """Tokens by TOKEN_RULE. number: s, different for prompts that share nothing. length: tokens.

    start: the first `start` tokens are those of prompt `start_of`. image: put image tokens at positions 2 to 5.
    """

    number: int
    length: int
    start: int = 0
    start_of: int = 0
    image: bool = False

    def tokens(self, vocabulary: int, image_token: int | None) -> list[int]:
        """Return the ids, all from 3 to below `vocabulary`, which excludes special tokens."""
        ids = [_token(i, self.start_of if i < self.start else self.number, vocabulary - 3) for i in range(self.length)]
        if self.image:
            ids[2:6] = [image_token] * 4
        return ids


def _token(i: int, number: int, modulus: int) -> int:
    # The last term keeps a prompt longer than the modulus from repeating itself, which would cause ties.
    return 3 + (7 * i * i + 613 * (2 * number + 1) * i + 7919 * number + 1009 * (i // modulus)) % modulus


@dataclass(frozen=True)
class RequestCase:
    """Requests submitted together after a flush; `predecessor` comes before them and fills the cache.

    output_tokens: of every request, or one number per request. cached: smallest and largest number of prompt
    tokens that may come from the cache, for every request.
    """

    prompts: tuple[Prompt, ...]
    keep: Keep
    output_tokens: int | tuple[int, ...] = 4
    predecessor: Prompt | None = None
    cached: tuple[int, int] = (0, 0)
    default: bool = True

    @property
    def outputs(self) -> list[int]:
        """Return the number of tokens to generate for each prompt."""
        if isinstance(self.output_tokens, int):
            return [self.output_tokens] * len(self.prompts)
        return list(self.output_tokens)


Steps = dict[int, list[str]]


def keep(prefill: Steps | None = None, decode: Steps | None = None, some: dict[int, Steps] | None = None) -> Keep:
    """Build a `Keep` from the definitions per forward pass. some: decode passes of so many of the requests."""
    parts = {"prefill": prefill, "decode": decode}
    parts |= {f"decode {count}": steps for count, steps in (some or {}).items()}
    result: Keep = {}
    for phase, steps in parts.items():
        for step, names in (steps or {}).items():
            for name in names:
                result.setdefault(phase, {}).setdefault(name, []).append(step)
    return result


SPAN_RULE = (
    "span-v1: block -> 64 tokens of the authored text, read as a circle, from the position SHA-256"
    "(session, NUL, block id), first 8 bytes big-endian, mod the text's number of tokens"
)


@dataclass(frozen=True)
class Profile:
    """Everything fixed about a capture. flags: of `sglang.Engine`. layers: layer to capture, by definition.

    seeded: the checkpoint is one of `make_seeded_checkpoint.py`.
    substitutions: name -> description of what replaces the engine's kernels on GPUs of compute capability 9.x.
    blackwell_environment: variables that select the same formats where the GPU supports them.
    tokens: ids of prompts lie in 3 .. tokens - 1. ties: definitions whose selection may differ by near ties.

    For AgentX cases only: checkpoint: repository of the pinned checkpoint (no published source prints its
    revision). phases: definitions to keep in prefill and in decode. page_size: of the prefix cache, in
    tokens. hit_slack: tokens by which a cache hit may stay below the whole pages of a shared prefix.
    """

    layers: dict[str, int]
    flags: dict[str, Any]
    seeded: bool = False
    cases: dict[str, RequestCase] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    blackwell_environment: dict[str, str] = field(default_factory=dict)
    substitutions: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    image_token: int | None = None
    ties: tuple[str, ...] = ()
    prompt_rule: str = TOKEN_RULE
    checkpoint: str = ""
    phases: dict[str, list[str]] = field(default_factory=dict)
    page_size: int = 1
    hit_slack: int = 0


EAGER = {
    "skip_tokenizer_init": True,
    "enable_multimodal": False,
    "cuda_graph_backend_decode": "disabled",
    "cuda_graph_backend_prefill": "disabled",
    "disable_overlap_schedule": True,
    "skip_server_warmup": True,
    "watchdog_timeout": 3600,
    "random_seed": 0,
    "log_level": "info",
}


def expected_definitions(profile: Profile, cases: list[str]) -> list[str]:
    """Return the definitions of which the cases must yield a call, in the profile's order."""
    wanted = {name for case in cases for steps in profile.cases[case].keep.values() for name in steps}
    return [name for name in profile.layers if name in wanted]


def enlarged(profile: Profile, cases: dict[str, RequestCase], **flags: Any) -> Profile:
    """Return a seeded profile with larger cases and the flags they need."""
    return replace(profile, cases=cases, flags=profile.flags | flags)


def rehearsed(seeded: Profile, published: Profile, context_length: int) -> Profile:
    """Return the published profile of a model, reduced to what its seeded checkpoint on one GPU can serve.

    context_length: all that the seeded checkpoint's configuration admits.
    """
    flags = {
        "chunked_prefill_size": published.flags["chunked_prefill_size"],
        "schedule_policy": "fcfs",
        "context_length": context_length,
    }
    return replace(
        seeded,
        cases={},
        phases=published.phases,
        page_size=published.page_size,
        hit_slack=published.hit_slack,
        prompt_rule=published.prompt_rule + "; an id a word stands in for the tokenizer",
        flags=seeded.flags | flags,
    )
