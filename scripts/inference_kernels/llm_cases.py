"""Requests of the seeded captures: prompts by an integer rule, groups of them, forward passes to keep.

The small cases fill the starter slice, so they have few rows and few pages; the large ones are captured and
validated on the GPU host and come back as a summary. Standard library only.
"""

from dataclasses import dataclass

from .deepseek_hooks import DOWN, GATE_UP, MIXED, ROUTER, SPARSE_128, SPARSE_640
from .gdn_hooks import DECODE, PREFILL
from .qwen_hooks import ATTENTION, INDEX

# Forward passes to keep, from 0: "prefill", "decode" (of all requests) or "decode N" (of N of them) ->
# definition -> numbers. Each of the three is counted on its own.
Keep = dict[str, dict[str, list[int]]]
TOKEN_RULE = (
    "arithmetic-v2: id = 3 + (7 i^2 + 613 (2 s + 1) i + 7919 s + 1009 floor(i / m)) mod m, s the prompt's number"
)


@dataclass(frozen=True)
class Prompt:
    """Tokens by the rule above. number: s, different for prompts that share nothing. length: tokens.

    start: the first `start` tokens are those of prompt `start_of`. image: put image tokens at positions 2 to
    5.
    """

    number: int
    length: int
    start: int = 0
    start_of: int = 0
    image: bool = False

    def tokens(self, vocabulary: int, image_token: int | None) -> list[int]:
        """The ids, all of them from 3 to below `vocabulary`, which excludes special tokens."""
        ids = [_token(i, self.start_of if i < self.start else self.number, vocabulary - 3) for i in range(self.length)]
        if self.image:
            ids[2:6] = [image_token] * 4
        return ids


def _token(i: int, number: int, modulus: int) -> int:
    # The last term keeps a prompt longer than the modulus from repeating itself, which would make ties.
    return 3 + (7 * i * i + 613 * (2 * number + 1) * i + 7919 * number + 1009 * (i // modulus)) % modulus


@dataclass(frozen=True)
class Case:
    """Requests that are submitted together after a flush, and a request before them that fills the cache.

    output_tokens: of every request, or of each one. cached: smallest and largest number of prompt tokens that
    may come from the cache, for every request.
    """

    prompts: tuple[Prompt, ...]
    keep: Keep
    output_tokens: int | tuple[int, ...] = 4
    predecessor: Prompt | None = None
    cached: tuple[int, int] = (0, 0)
    default: bool = True

    @property
    def outputs(self) -> list[int]:
        """Tokens to generate for each prompt."""
        if isinstance(self.output_tokens, int):
            return [self.output_tokens] * len(self.prompts)
        return list(self.output_tokens)


Steps = dict[int, list[str]]


def keep(prefill: Steps | None = None, decode: Steps | None = None, some: dict[int, Steps] | None = None) -> Keep:
    """`Keep` from the definitions of each forward pass; `some`: decode passes of so many of the requests."""
    parts = {"prefill": prefill, "decode": decode}
    parts |= {f"decode {count}": steps for count, steps in (some or {}).items()}
    result: Keep = {}
    for phase, steps in parts.items():
        for step, names in (steps or {}).items():
            for name in names:
                result.setdefault(phase, {}).setdefault(name, []).append(step)
    return result


GROUPED, SPARSE, QSA = [GATE_UP, DOWN], [SPARSE_128, SPARSE_640], [INDEX, ATTENTION]

# A query row of latent attention is 64 KiB, and its output as much. At 2562 tokens the sixth chunk of 512 has
# two rows.
DEEPSEEK_CASES = {
    "short_request": Case((Prompt(1, 8, image=True),), keep({0: [ROUTER, *GROUPED]}, {1: [ROUTER, MIXED, *GROUPED]})),
    "tiny_request": Case((Prompt(2, 2),), keep({0: SPARSE})),
    "two_requests": Case((Prompt(3, 2), Prompt(4, 2)), keep({0: SPARSE}, {1: [MIXED]})),
    "three_requests": Case(
        (Prompt(5, 3), Prompt(6, 5), Prompt(7, 7)),
        output_tokens=(4, 6, 6),
        keep=keep({0: [ROUTER]}, {1: [ROUTER, MIXED, *GROUPED]}, {2: {0: [ROUTER]}}),
    ),
    "long_context": Case((Prompt(8, 2562),), keep({5: SPARSE}, {1: [MIXED]})),
}
# Contexts of at most 2051 tokens select everything; from 2560 on, few scores are zero and ties are rare. A
# page of keys and values is 128 KiB.
QWEN_CASES = {
    "short_request": Case((Prompt(1, 9),), keep({0: QSA}, {1: QSA})),
    "three_requests": Case(
        (Prompt(2, 40), Prompt(3, 9), Prompt(4, 21)), output_tokens=(4, 6, 6), keep=keep(None, {1: QSA}, {2: {0: QSA}})
    ),
    "long_context": Case((Prompt(9, 2700),), keep(None, {1: [INDEX]})),
    "cached_prefix": Case(
        (Prompt(5, 68, start=64, start_of=6),), keep({0: QSA}), predecessor=Prompt(6, 70), cached=(64, 64)
    ),
    "long_cached_prefix": Case(
        (Prompt(7, 2564, start=2560, start_of=8),),
        keep({0: QSA}, {2: [INDEX]}),
        predecessor=Prompt(8, 2570),
        cached=(64, 2560),
    ),
}
# A state is 512 KiB, before and after; four requests are 4 MiB.
GDN_CASES = {
    "short_request": Case((Prompt(1, 16),), keep({0: [PREFILL]}, {1: [DECODE]})),
    "two_requests": Case((Prompt(2, 9), Prompt(3, 66)), keep({0: [PREFILL]}, {1: [DECODE]})),
    "four_requests": Case((Prompt(4, 20), Prompt(5, 40), Prompt(6, 60), Prompt(7, 90)), keep(None, {1: [DECODE]})),
    "cached_prefix": Case(
        (Prompt(8, 208, start=192, start_of=9),), keep({0: [PREFILL]}), predecessor=Prompt(9, 200), cached=(64, 192)
    ),
}

# Cases that depend on the prefix cache come last: a hit other than planned ends the run.
DEEPSEEK_LARGE = {
    "large_prefill": Case((Prompt(20, 4096, image=True),), keep({0: [ROUTER, *SPARSE, *GROUPED]})),
    "long_decode": Case(
        tuple(Prompt(40 + n, 530 + 97 * n) for n in range(16)),
        output_tokens=8,
        keep=keep(None, {1: [ROUTER, MIXED, *GROUPED]}),
    ),
    # The ninth chunk of 4096 has 232 rows.
    "long_context": Case((Prompt(21, 33_000),), keep({8: SPARSE}, {1: [MIXED]})),
    "cached_prefix": Case(
        (Prompt(22, 8400, start=8192, start_of=23),),
        keep({0: SPARSE}, {1: [MIXED]}),
        predecessor=Prompt(23, 8300),
        cached=(256, 8192),
    ),
}
QWEN_LARGE = {
    "large_prefill": Case((Prompt(20, 4096),), keep({0: QSA})),
    "long_decode": Case(tuple(Prompt(40 + n, 2600 + 41 * n) for n in range(16)), keep(None, {1: QSA}), output_tokens=8),
    # The 17th chunk of 4096 has 464 rows.
    "long_context": Case((Prompt(21, 66_000),), keep({16: QSA}, {1: QSA})),
    "cached_prefix": Case(
        (Prompt(22, 8400, start=8192, start_of=23),), keep({0: QSA}), predecessor=Prompt(23, 8300), cached=(64, 8192)
    ),
}
GDN_LARGE = {
    "large_prefill": Case((Prompt(20, 8192),), keep({0: [PREFILL]}, {1: [DECODE]})),
    "many_requests": Case(
        tuple(Prompt(40 + n, 100 + 37 * n) for n in range(16)),
        output_tokens=8,
        keep=keep({0: [PREFILL]}, {1: [DECODE]}),
    ),
    "large_decode": Case(tuple(Prompt(60 + n, 24 + n) for n in range(64)), keep(None, {1: [DECODE]}), output_tokens=8),
    # The predecessor's state is kept at its last multiple of 64 and nowhere before: a prefix must end there.
    "cached_prefix": Case(
        (Prompt(21, 1400, start=1088, start_of=22),),
        keep({0: [PREFILL]}),
        predecessor=Prompt(22, 1100),
        cached=(64, 1088),
    ),
}
