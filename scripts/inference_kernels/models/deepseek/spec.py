"""DeepSeek-V4.1: its operators, capture requests, engine flags, and the published checkpoint."""

from inference_kernels.capture.requests import EAGER, SPAN_RULE, Profile, Prompt, RequestCase, enlarged, keep, rehearsed
from inference_kernels.models.deepseek.config import IMAGE_TOKEN
from inference_kernels.models.deepseek.hopper import SUBSTITUTIONS
from inference_kernels.models.model import Published, Repository

ROUTER = "expert_router_bf16_h5120_e384_top6"
SPARSE_128, SPARSE_640 = "sparse_mla_prefill_bf16_h64_d512_s128", "sparse_mla_prefill_bf16_h64_d512_s640"
MIXED = "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512"
GATE_UP, DOWN = "grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32"
GROUPED, SPARSE = [GATE_UP, DOWN], [SPARSE_128, SPARSE_640]
# A query row of latent attention is 64 KiB, and its output as much. At 2562 tokens the sixth chunk of 512 has
# two rows.
CASES = {
    "short_request": RequestCase(
        (Prompt(1, 8, image=True),), keep({0: [ROUTER, *GROUPED]}, {1: [ROUTER, MIXED, *GROUPED]})
    ),
    "tiny_request": RequestCase((Prompt(2, 2),), keep({0: SPARSE})),
    "two_requests": RequestCase((Prompt(3, 2), Prompt(4, 2)), keep({0: SPARSE}, {1: [MIXED]})),
    "three_requests": RequestCase(
        (Prompt(5, 3), Prompt(6, 5), Prompt(7, 7)),
        output_tokens=(4, 6, 6),
        keep=keep({0: [ROUTER]}, {1: [ROUTER, MIXED, *GROUPED]}, {2: {0: [ROUTER]}}),
    ),
    "long_context": RequestCase((Prompt(8, 2562),), keep({5: SPARSE}, {1: [MIXED]})),
}
# Cases that depend on the prefix cache come last: a hit other than planned ends the run.
LARGE = {
    "large_prefill": RequestCase((Prompt(20, 4096, image=True),), keep({0: [ROUTER, *SPARSE, *GROUPED]})),
    "long_decode": RequestCase(
        tuple(Prompt(40 + n, 530 + 97 * n) for n in range(16)),
        output_tokens=8,
        keep=keep(None, {1: [ROUTER, MIXED, *GROUPED]}),
    ),
    # The ninth chunk of 4096 has 232 rows.
    "long_context": RequestCase((Prompt(21, 33_000),), keep({8: SPARSE}, {1: [MIXED]})),
    "cached_prefix": RequestCase(
        (Prompt(22, 8400, start=8192, start_of=23),),
        keep({0: SPARSE}, {1: [MIXED]}),
        predecessor=Prompt(23, 8300),
        cached=(256, 8192),
    ),
}
FLAGS = EAGER | {
    "dsv4_attn_backend": "flashmla",
    "moe_runner_backend": "deep_gemm",
    "fp8_gemm_runner_backend": "triton",
    "disable_flashinfer_autotune": True,
    "enable_decoder_swa_bounded_replay": False,
}
ENVIRONMENT = {"SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"}
V41_LAYOUT = {"SGLANG_DSV4_KV_LAYOUT": "v41"}
CHECKPOINT = "deepseek-ai/DeepSeek-V4.1-Flash"
SEEDED = Profile(
    layers={SPARSE_128: 0, SPARSE_640: 1, MIXED: 1, ROUTER: 1, GATE_UP: 1, DOWN: 1},
    seeded=True,
    cases=CASES,
    flags=FLAGS
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
    environment=ENVIRONMENT | {"SGLANG_OPT_USE_TILELANG_MHC_PRE": "0"},
    blackwell_environment=V41_LAYOUT,
    substitutions=SUBSTITUTIONS,
    tokens=7900,
    image_token=IMAGE_TOKEN,
    ties=(ROUTER,),
)
# SGLang 0.5.23 forces the page size.
FULL = Profile(
    checkpoint=CHECKPOINT,
    prompt_rule=SPAN_RULE,
    page_size=256,
    phases={"prefill": [ROUTER, SPARSE_128, SPARSE_640, *GROUPED], "decode": [ROUTER, MIXED, *GROUPED]},
    layers={SPARSE_128: 1, SPARSE_640: 10, MIXED: 10, ROUTER: 20, GATE_UP: 20, DOWN: 20},
    flags=FLAGS
    | {
        "tp_size": 4,
        "ep_size": 4,
        "dp_size": 1,
        "chunked_prefill_size": 4096,
        "schedule_policy": "fcfs",
        "context_length": 1_048_576,
    },
    environment=ENVIRONMENT,
    blackwell_environment=V41_LAYOUT,
    substitutions=SUBSTITUTIONS,
    ties=(ROUTER,),
)
PROFILES = {
    "seeded": SEEDED,
    "large": enlarged(SEEDED, LARGE, chunked_prefill_size=4096, max_running_requests=32),
    "rehearsal": rehearsed(SEEDED, FULL, 131_072),
    "published": FULL,
}
PUBLISHED = Published(
    "DeepSeek V4.1 Flash",
    "deepseek-v4.1-flash",
    (Repository(CHECKPOINT),),
    gpus=4,
    gigabytes=511,
    memory_gib=768,
    case_seconds=7200,
    expert_parallel=True,
)
