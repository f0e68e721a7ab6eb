"""Qwen3-Next, gated delta rule: its operators and capture requests; no full checkpoint of it is captured."""

from inference_kernels.capture.requests import Profile, Prompt, RequestCase, enlarged, keep, rehearsed
from inference_kernels.models.qwen.spec import FLAGS

PREFILL, DECODE = "gdn_prefill_qk4_v8_d128_k_last", "gdn_decode_qk4_v8_d128_k_last"
# A state is 512 KiB, before and after; four requests are 4 MiB.
CASES = {
    "short_request": RequestCase((Prompt(1, 16),), keep({0: [PREFILL]}, {1: [DECODE]})),
    "two_requests": RequestCase((Prompt(2, 9), Prompt(3, 66)), keep({0: [PREFILL]}, {1: [DECODE]})),
    "four_requests": RequestCase(
        (Prompt(4, 20), Prompt(5, 40), Prompt(6, 60), Prompt(7, 90)), keep(None, {1: [DECODE]})
    ),
    "cached_prefix": RequestCase(
        (Prompt(8, 208, start=192, start_of=9),), keep({0: [PREFILL]}), predecessor=Prompt(9, 200), cached=(64, 192)
    ),
}
LARGE = {
    "large_prefill": RequestCase((Prompt(20, 8192),), keep({0: [PREFILL]}, {1: [DECODE]})),
    "many_requests": RequestCase(
        tuple(Prompt(40 + n, 100 + 37 * n) for n in range(16)),
        output_tokens=8,
        keep=keep({0: [PREFILL]}, {1: [DECODE]}),
    ),
    "large_decode": RequestCase(
        tuple(Prompt(60 + n, 24 + n) for n in range(64)), keep(None, {1: [DECODE]}), output_tokens=8
    ),
    # The predecessor's state is kept at its last multiple of 64 and nowhere before: a prefix must end there.
    "cached_prefix": RequestCase(
        (Prompt(21, 1400, start=1088, start_of=22),),
        keep({0: [PREFILL]}),
        predecessor=Prompt(22, 1100),
        cached=(64, 1088),
    ),
}
SEEDED = Profile(
    layers={PREFILL: 1, DECODE: 1},
    seeded=True,
    cases=CASES,
    tokens=31000,
    flags=FLAGS
    | {
        "attention_backend": "triton",
        "page_size": 64,
        "chunked_prefill_size": 4096,
        "linear_attn_decode_backend": "flashinfer",
        "max_running_requests": 8,
        "mem_fraction_static": 0.5,
        "context_length": 65536,
    },
)
FULL = Profile(
    layers={PREFILL: 21, DECODE: 21},
    flags=FLAGS
    | {
        "tp_size": 4,
        "page_size": 64,
        "chunked_prefill_size": 8192,
        "linear_attn_decode_backend": "flashinfer",
        "context_length": 262_144,
    },
)
PROFILES = {
    "seeded": SEEDED,
    "large": enlarged(SEEDED, LARGE, chunked_prefill_size=8192, max_running_requests=64),
    "rehearsal": rehearsed(SEEDED, FULL, 262_144),
    "published": FULL,
}
