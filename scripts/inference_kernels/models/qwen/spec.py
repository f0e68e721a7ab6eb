"""Qwen-Next: its capture requests and engine flags."""

from inference_kernels.capture.requests import EAGER, Case, Prompt, keep
from inference_kernels.models.qwen.hooks import ATTENTION, INDEX

QSA = [INDEX, ATTENTION]


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


QWEN_LARGE = {
    "large_prefill": Case((Prompt(20, 4096),), keep({0: QSA})),
    "long_decode": Case(tuple(Prompt(40 + n, 2600 + 41 * n) for n in range(16)), keep(None, {1: QSA}), output_tokens=8),
    # The 17th chunk of 4096 has 464 rows.
    "long_context": Case((Prompt(21, 66_000),), keep({16: QSA}, {1: QSA})),
    "cached_prefix": Case(
        (Prompt(22, 8400, start=8192, start_of=23),), keep({0: QSA}), predecessor=Prompt(23, 8300), cached=(64, 8192)
    ),
}


QWEN_FLAGS = EAGER | {"dtype": "bfloat16", "mamba_radix_cache_strategy": "extra_buffer"}
