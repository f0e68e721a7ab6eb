"""DeepSeek-V4.1: its capture requests, engine flags and environment."""

from inference_kernels.capture.requests import EAGER, Case, Prompt, keep
from inference_kernels.models.deepseek.hooks import DOWN, GATE_UP, MIXED, ROUTER, SPARSE_128, SPARSE_640

GROUPED, SPARSE = [GATE_UP, DOWN], [SPARSE_128, SPARSE_640]


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


DEEPSEEK_FLAGS = EAGER | {
    "dsv4_attn_backend": "flashmla",
    "moe_runner_backend": "deep_gemm",
    "fp8_gemm_runner_backend": "triton",
    "disable_flashinfer_autotune": True,
    "enable_decoder_swa_bounded_replay": False,
}


DEEPSEEK_ENVIRONMENT = {"SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"}


V41_LAYOUT = {"SGLANG_DSV4_KV_LAYOUT": "v41"}


HOPPER = ("v41_kv_layout", "mixed_decode", "grouped_gemm", "ue8m0_activations")
