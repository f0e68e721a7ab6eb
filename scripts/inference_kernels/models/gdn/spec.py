"""Qwen3-Next, gated delta rule: its capture requests."""

from inference_kernels.capture.requests import Case, Prompt, keep
from inference_kernels.models.gdn.hooks import DECODE, PREFILL

# A state is 512 KiB, before and after; four requests are 4 MiB.
GDN_CASES = {
    "short_request": Case((Prompt(1, 16),), keep({0: [PREFILL]}, {1: [DECODE]})),
    "two_requests": Case((Prompt(2, 9), Prompt(3, 66)), keep({0: [PREFILL]}, {1: [DECODE]})),
    "four_requests": Case((Prompt(4, 20), Prompt(5, 40), Prompt(6, 60), Prompt(7, 90)), keep(None, {1: [DECODE]})),
    "cached_prefix": Case(
        (Prompt(8, 208, start=192, start_of=9),), keep({0: [PREFILL]}), predecessor=Prompt(9, 200), cached=(64, 192)
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
