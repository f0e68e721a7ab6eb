"""Qwen-Next: its operators, capture requests, engine flags, and the published checkpoint."""

from inference_kernels.capture.requests import EAGER, SPAN_RULE, Profile, Prompt, RequestCase, enlarged, keep, rehearsed
from inference_kernels.models.model import Published, Repository

INDEX = "sparse_index_select_bf16_h4_d128_topk512_blk4"
ATTENTION = "sparse_gqa_bf16_h24_kv2_d256_topk512_blk4"
QSA = [INDEX, ATTENTION]
# Contexts of at most 2051 tokens select everything; from 2560 on, few scores are zero and ties are rare. A
# page of keys and values is 128 KiB.
CASES = {
    "short_request": RequestCase((Prompt(1, 9),), keep({0: QSA}, {1: QSA})),
    "three_requests": RequestCase(
        (Prompt(2, 40), Prompt(3, 9), Prompt(4, 21)), output_tokens=(4, 6, 6), keep=keep(None, {1: QSA}, {2: {0: QSA}})
    ),
    "long_context": RequestCase((Prompt(9, 2700),), keep(None, {1: [INDEX]})),
    "cached_prefix": RequestCase(
        (Prompt(5, 68, start=64, start_of=6),), keep({0: QSA}), predecessor=Prompt(6, 70), cached=(64, 64)
    ),
    "long_cached_prefix": RequestCase(
        (Prompt(7, 2564, start=2560, start_of=8),),
        keep({0: QSA}, {2: [INDEX]}),
        predecessor=Prompt(8, 2570),
        cached=(64, 2560),
    ),
}
LARGE = {
    "large_prefill": RequestCase((Prompt(20, 4096),), keep({0: QSA})),
    "long_decode": RequestCase(
        tuple(Prompt(40 + n, 2600 + 41 * n) for n in range(16)), keep(None, {1: QSA}), output_tokens=8
    ),
    # The 17th chunk of 4096 has 464 rows.
    "long_context": RequestCase((Prompt(21, 66_000),), keep({16: QSA}, {1: QSA})),
    "cached_prefix": RequestCase(
        (Prompt(22, 8400, start=8192, start_of=23),), keep({0: QSA}), predecessor=Prompt(23, 8300), cached=(64, 8192)
    ),
}
FLAGS = EAGER | {"dtype": "bfloat16", "mamba_radix_cache_strategy": "extra_buffer"}
CHECKPOINT = "nvidia/Qwen3.8-Flash-Next-NVFP4"
SEEDED = Profile(
    layers={INDEX: 3, ATTENTION: 3},
    seeded=True,
    cases=CASES,
    tokens=31000,
    ties=(INDEX,),
    # FlashAttention 3 may be absent; the sparse layers use their own kernels in any case.
    flags=FLAGS
    | {
        "attention_backend": "triton",
        "mm_attention_backend": "triton_attn",
        "ple_offload_embedding": False,
        "chunked_prefill_size": 4096,
        "max_running_requests": 8,
        "mem_fraction_static": 0.5,
        "context_length": 65536,
    },
)
# SGLang 0.5.23 forces the page size. Recurrent states are kept at the ends of prefill chunks, so a hit can stay up to
# one chunk below the shared prefix.
FULL = Profile(
    checkpoint=CHECKPOINT,
    prompt_rule=SPAN_RULE,
    page_size=64,
    hit_slack=4096,
    phases={"prefill": [INDEX, ATTENTION], "decode": [INDEX, ATTENTION]},
    layers={INDEX: 23, ATTENTION: 23},
    ties=(INDEX,),
    flags=FLAGS
    | {
        "ple_offload_embedding": True,
        "chunked_prefill_size": 4096,
        "schedule_policy": "fcfs",
        "context_length": 262_144,
    },
)
PROFILES = {
    "seeded": SEEDED,
    "large": enlarged(SEEDED, LARGE, max_running_requests=32, context_length=131_072),
    "rehearsal": rehearsed(SEEDED, FULL, 262_144),
    "published": FULL,
}
PUBLISHED = Published(
    "Qwen 3.8 Flash-Next NVFP4",
    "qwen3.8-flash-next-nvfp4",
    (Repository(CHECKPOINT),),
    gpus=1,
    gigabytes=200,
    memory_gib=512,
    case_seconds=7200,
)
