"""What to capture from each language model: engine flags, layers, requests. One `Profile` for a kind and a
purpose.

    seeded      the starter slice: small cases on a seeded checkpoint
    large       larger cases on the same checkpoint, for validation on the GPU host
    rehearsal   the published cases on the same checkpoint, as far as its context reaches
    published   the published cases on the full checkpoint

`llm_agentx` adds the cases of `agentx_shapes.json` to the last two. Standard library only.
"""

from dataclasses import replace
from typing import Any

from inference_kernels.capture.requests import SPAN_RULE, Case, Profile
from inference_kernels.models.deepseek.checkpoint import IMAGE_TOKEN
from inference_kernels.models.deepseek.hooks import DOWN, GATE_UP, MIXED, ROUTER, SPARSE_128, SPARSE_640
from inference_kernels.models.deepseek.spec import (
    DEEPSEEK_CASES,
    DEEPSEEK_ENVIRONMENT,
    DEEPSEEK_FLAGS,
    DEEPSEEK_LARGE,
    GROUPED,
    HOPPER,
    V41_LAYOUT,
)
from inference_kernels.models.gdn.hooks import DECODE, PREFILL
from inference_kernels.models.gdn.spec import GDN_CASES, GDN_LARGE
from inference_kernels.models.qwen.hooks import ATTENTION, INDEX
from inference_kernels.models.qwen.spec import QWEN_CASES, QWEN_FLAGS, QWEN_LARGE

SEEDED = {
    "deepseek41": Profile(
        layers={SPARSE_128: 0, SPARSE_640: 1, MIXED: 1, ROUTER: 1, GATE_UP: 1, DOWN: 1},
        seeded=True,
        cases=DEEPSEEK_CASES,
        flags=DEEPSEEK_FLAGS
        | {
            "tp_size": 1,
            "chunked_prefill_size": 512,
            "max_running_requests": 4,
            "mem_fraction_static": 0.4,
            "max_total_tokens": 200_000,
            "context_length": 65536,
        },
        # At load SGLang compiles this kernel for every size of a chunk, 20 s each; V4.1 never calls it (its
        # sublayers take their mixing weights from the previous one).
        environment=DEEPSEEK_ENVIRONMENT | {"SGLANG_OPT_USE_TILELANG_MHC_PRE": "0"},
        blackwell_environment=V41_LAYOUT,
        substitutions=HOPPER,
        tokens=7900,
        image_token=IMAGE_TOKEN,
        ties=(ROUTER,),
    ),
    "qwen-next": Profile(
        layers={INDEX: 3, ATTENTION: 3},
        seeded=True,
        cases=QWEN_CASES,
        tokens=31000,
        ties=(INDEX,),
        # FlashAttention 3 may be absent; the sparse layers use their own kernels in any case.
        flags=QWEN_FLAGS
        | {
            "attention_backend": "triton",
            "mm_attention_backend": "triton_attn",
            "ple_offload_embedding": False,
            "chunked_prefill_size": 4096,
            "max_running_requests": 8,
            "mem_fraction_static": 0.5,
            "context_length": 65536,
        },
    ),
    "qwen3-next-gdn": Profile(
        layers={PREFILL: 1, DECODE: 1},
        seeded=True,
        cases=GDN_CASES,
        tokens=31000,
        flags=QWEN_FLAGS
        | {
            "attention_backend": "triton",
            "page_size": 64,
            "chunked_prefill_size": 4096,
            "linear_attn_decode_backend": "flashinfer",
            "max_running_requests": 8,
            "mem_fraction_static": 0.5,
            "context_length": 65536,
        },
    ),
}
# SGLang 0.5.23 forces both page sizes. Qwen's recurrent states are kept at the ends of prefill chunks, so a
# hit can stay up to one chunk below the shared prefix.
PUBLISHED = {
    "deepseek41": Profile(
        checkpoint="deepseek-ai/DeepSeek-V4.1-Flash",
        prompt_rule=SPAN_RULE,
        page_size=256,
        phases={"prefill": [ROUTER, SPARSE_128, SPARSE_640, *GROUPED], "decode": [ROUTER, MIXED, *GROUPED]},
        layers={SPARSE_128: 1, SPARSE_640: 10, MIXED: 10, ROUTER: 20, GATE_UP: 20, DOWN: 20},
        flags=DEEPSEEK_FLAGS
        | {
            "tp_size": 4,
            "ep_size": 4,
            "dp_size": 1,
            "chunked_prefill_size": 4096,
            "schedule_policy": "fcfs",
            "context_length": 1_048_576,
        },
        environment=DEEPSEEK_ENVIRONMENT,
        blackwell_environment=V41_LAYOUT,
        substitutions=HOPPER,
        ties=(ROUTER,),
    ),
    "qwen-next": Profile(
        checkpoint="nvidia/Qwen3.8-Flash-Next-NVFP4",
        prompt_rule=SPAN_RULE,
        page_size=64,
        hit_slack=4096,
        phases={"prefill": [INDEX, ATTENTION], "decode": [INDEX, ATTENTION]},
        layers={INDEX: 23, ATTENTION: 23},
        ties=(INDEX,),
        flags=QWEN_FLAGS
        | {
            "ple_offload_embedding": True,
            "chunked_prefill_size": 4096,
            "schedule_policy": "fcfs",
            "context_length": 262_144,
        },
    ),
    "qwen3-next-gdn": Profile(
        layers={PREFILL: 21, DECODE: 21},
        flags=QWEN_FLAGS
        | {
            "tp_size": 4,
            "page_size": 64,
            "chunked_prefill_size": 8192,
            "linear_attn_decode_backend": "flashinfer",
            "context_length": 262_144,
        },
    ),
}


def enlarged(kind: str, cases: dict[str, Case], **flags: Any) -> Profile:
    """The seeded profile of a kind with larger cases and the flags they need."""
    return replace(SEEDED[kind], cases=cases, flags=SEEDED[kind].flags | flags)


LARGE = {
    "deepseek41": enlarged("deepseek41", DEEPSEEK_LARGE, chunked_prefill_size=4096, max_running_requests=32),
    "qwen-next": enlarged("qwen-next", QWEN_LARGE, max_running_requests=32, context_length=131_072),
    "qwen3-next-gdn": enlarged("qwen3-next-gdn", GDN_LARGE, chunked_prefill_size=8192, max_running_requests=64),
}


def rehearsed(kind: str, context_length: int) -> Profile:
    """The published profile of a kind as far as it fits a seeded checkpoint on one GPU.

    context_length: all that the checkpoint's configuration admits.
    """
    served, full = SEEDED[kind], PUBLISHED[kind]
    flags = {
        "chunked_prefill_size": full.flags["chunked_prefill_size"],
        "schedule_policy": "fcfs",
        "context_length": context_length,
    }
    return replace(
        served,
        cases={},
        phases=full.phases,
        page_size=full.page_size,
        hit_slack=full.hit_slack,
        prompt_rule=full.prompt_rule + "; an id a word stands in for the tokenizer",
        flags=served.flags | flags,
    )


REHEARSAL = {
    "deepseek41": rehearsed("deepseek41", 131_072),
    "qwen-next": rehearsed("qwen-next", 262_144),
    "qwen3-next-gdn": rehearsed("qwen3-next-gdn", 262_144),
}
PROFILES = {"seeded": SEEDED, "large": LARGE, "rehearsal": REHEARSAL, "published": PUBLISHED}
KINDS = sorted(SEEDED)


def find_profile(kind: str, name: str) -> Profile:
    return PROFILES[name][kind]
