"""What to capture from each language model: engine flags, layers, requests. One `Profile` for a kind and a
class.

A case of the seeded profile is authored here, in token ids that follow an integer rule: those models have no
tokenizer. `llm_agentx` adds the cases of `agentx_shapes.json` to a published profile. Standard library only.
"""

from dataclasses import dataclass, field
from typing import Any

from .deepseek_checkpoint import IMAGE_TOKEN
from .deepseek_hooks import DOWN, GATE_UP, MIXED, ROUTER, SPARSE_128, SPARSE_640
from .gdn_hooks import DECODE, PREFILL
from .qwen_hooks import ATTENTION, INDEX

# phase -> definition -> forward passes to keep, from 0; decode passes count only with the whole batch.
Keep = dict[str, dict[str, list[int]]]
TOKEN_RULE = "arithmetic-v1: id = 3 + (7 i^2 + 613 (2 s + 1) i + 7919 s) mod m, s the prompt's number"
SPAN_RULE = ("span-v1: block -> 64 tokens of the authored text, read as a circle, from the position SHA-256"
             "(session, NUL, block id), first 8 bytes big-endian, mod the text's number of tokens")


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
        ids = [_token(i, self.start_of if i < self.start else self.number, vocabulary)
                      for i in range(self.length)]
        if self.image:
            ids[2:6] = [image_token] * 4
        return ids


def _token(i: int, number: int, vocabulary: int) -> int:
    return 3 + (7 * i * i + 613 * (2 * number + 1) * i + 7919 * number) % (vocabulary - 3)


@dataclass(frozen=True)
class Case:
    """Requests that are submitted together after a flush, and a request before them that fills the cache.

    cached: smallest and largest number of prompt tokens that may come from the cache, for every request.
    """

    prompts: tuple[Prompt, ...]
    keep: Keep
    output_tokens: int = 4
    predecessor: Prompt | None = None
    cached: tuple[int, int] = (0, 0)
    default: bool = True

    @property
    def outputs(self) -> list[int]:
        """Tokens to generate for each prompt."""
        return [self.output_tokens] * len(self.prompts)


@dataclass(frozen=True)
class Profile:
    """Everything fixed about a capture. flags: of `sglang.Engine`. layers: layer to capture, by definition.

    substitutions: keys of `hopper_routes.SUBSTITUTIONS`, applied on GPUs of compute capability 9.x only.
    blackwell_environment: variables that select the same formats where the GPU supports them.
    tokens: ids of prompts lie in 3 .. tokens - 1. ties: definitions whose selection may differ by near-ties.

    For AgentX cases only: checkpoint: repository of the pinned checkpoint (no published source prints its
    revision). phases: definitions to keep in prefill and in decode. page_size: of the prefix cache, in
    tokens. hit_slack: tokens by which a cache hit may stay below the whole pages of a shared prefix.
    """

    layers: dict[str, int]
    flags: dict[str, Any]
    cases: dict[str, Case] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    blackwell_environment: dict[str, str] = field(default_factory=dict)
    substitutions: tuple[str, ...] = ()
    tokens: int = 0
    image_token: int | None = None
    ties: tuple[str, ...] = ()
    prompt_rule: str = TOKEN_RULE
    checkpoint: str = ""
    phases: dict[str, list[str]] = field(default_factory=dict)
    page_size: int = 1
    hit_slack: int = 0


EAGER = {"skip_tokenizer_init": True, "enable_multimodal": False, "cuda_graph_backend_decode": "disabled",
         "cuda_graph_backend_prefill": "disabled", "disable_overlap_schedule": True,
         "skip_server_warmup": True, "watchdog_timeout": 3600, "random_seed": 0, "log_level": "info"}
DEEPSEEK_FLAGS = EAGER | {
    "dsv4_attn_backend": "flashmla", "moe_runner_backend": "deep_gemm", "fp8_gemm_runner_backend": "triton",
    "disable_flashinfer_autotune": True, "enable_decoder_swa_bounded_replay": False}
QWEN_FLAGS = EAGER | {"dtype": "bfloat16", "mamba_radix_cache_strategy": "extra_buffer"}
DEEPSEEK_ENVIRONMENT = {"SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"}
V41_LAYOUT = {"SGLANG_DSV4_KV_LAYOUT": "v41"}
HOPPER = ("v41_kv_layout", "mixed_decode", "grouped_gemm", "ue8m0_activations")
GROUPED = [GATE_UP, DOWN]


def keep(prefill: dict[int, list[str]] | None = None, decode: dict[int, list[str]] | None = None) -> Keep:
    """`Keep` from the definitions of each forward pass."""
    result: Keep = {}
    for phase, steps in (("prefill", prefill), ("decode", decode)):
        for step, names in (steps or {}).items():
            for name in names:
                result.setdefault(phase, {}).setdefault(name, []).append(step)
    return result


# Few query rows: a row of latent attention is 64 KiB. At 2564 tokens the sixth chunk of 512 has four.
DEEPSEEK_CASES = {
    "short_request": Case((Prompt(1, 12, image=True),), keep({0: [ROUTER, *GROUPED]},
                                                             {1: [ROUTER, MIXED, *GROUPED]})),
    "tiny_request": Case((Prompt(2, 5),), keep({0: [SPARSE_128, SPARSE_640]})),
    "two_requests": Case((Prompt(3, 3), Prompt(4, 4)), keep({0: [SPARSE_128, SPARSE_640]}, {1: [MIXED]})),
    "three_requests": Case((Prompt(5, 9), Prompt(6, 17), Prompt(7, 33)),
                           keep({0: [ROUTER]}, {1: [ROUTER, MIXED, *GROUPED]})),
    "long_context": Case((Prompt(8, 2564),), keep({5: [SPARSE_128, SPARSE_640]}, {1: [MIXED]})),
    "large_prefill": Case((Prompt(9, 512, image=True),),
                          keep({0: [ROUTER, SPARSE_128, SPARSE_640, *GROUPED]}), default=False),
    "cached_prefix": Case((Prompt(10, 2564, start=2560, start_of=11),), keep({0: [SPARSE_128, SPARSE_640]}),
                          predecessor=Prompt(11, 2570), cached=(256, 2560), default=False),
}
# Contexts of at most 2051 tokens select everything; from 2560 on, few scores are zero and ties are rare.
QWEN_CASES = {
    "short_request": Case((Prompt(1, 24),), keep({0: [INDEX, ATTENTION]}, {1: [INDEX, ATTENTION]})),
    "three_requests": Case((Prompt(2, 33), Prompt(3, 65), Prompt(4, 130)),
                           keep(None, {1: [INDEX, ATTENTION]})),
    "long_context": Case((Prompt(9, 2700),), keep(None, {1: [INDEX]})),
    "cached_prefix": Case((Prompt(5, 74, start=64, start_of=6),), keep({0: [INDEX, ATTENTION]}),
                          predecessor=Prompt(6, 70), cached=(64, 64)),
    "long_cached_prefix": Case((Prompt(7, 2572, start=2560, start_of=8),),
                               keep({0: [INDEX, ATTENTION]}, {2: [INDEX]}),
                               predecessor=Prompt(8, 2570), cached=(64, 2560)),
    "long_decode": Case((Prompt(10, 2650),), keep(None, {1: [INDEX, ATTENTION]}), default=False),
    "large_prefill": Case((Prompt(11, 4000),), keep({0: [INDEX, ATTENTION]}), default=False),
}
# A state is 512 KiB, before and after; four requests are 4 MiB.
GDN_CASES = {
    "short_request": Case((Prompt(1, 48),), keep({0: [PREFILL]}, {1: [DECODE]})),
    "two_requests": Case((Prompt(2, 31), Prompt(3, 70)), keep({0: [PREFILL]}, {1: [DECODE]})),
    "four_requests": Case((Prompt(4, 20), Prompt(5, 40), Prompt(6, 60), Prompt(7, 90)),
                          keep(None, {1: [DECODE]})),
    "cached_prefix": Case((Prompt(8, 232, start=192, start_of=9),), keep({0: [PREFILL]}),
                          predecessor=Prompt(9, 200), cached=(64, 192)),
    "large_prefill": Case((Prompt(10, 700), Prompt(11, 300), Prompt(12, 1500)), keep({0: [PREFILL]}),
                          default=False),
}
SEEDED = {
    "deepseek41": Profile(
        layers={SPARSE_128: 0, SPARSE_640: 1, MIXED: 1, ROUTER: 1, GATE_UP: 1, DOWN: 1}, cases=DEEPSEEK_CASES,
        # 4096 rows would compile 21 hyper-connection kernels at load, 28 s each; 512 need eight.
        flags=DEEPSEEK_FLAGS | {"tp_size": 1, "chunked_prefill_size": 512, "max_running_requests": 4,
                                "mem_fraction_static": 0.4, "max_total_tokens": 200_000,
                                "context_length": 65536},
        environment=DEEPSEEK_ENVIRONMENT, blackwell_environment=V41_LAYOUT, substitutions=HOPPER,
        tokens=7900, image_token=IMAGE_TOKEN, ties=(ROUTER,)),
    "qwen-next": Profile(
        layers={INDEX: 3, ATTENTION: 3}, cases=QWEN_CASES, tokens=31000, ties=(INDEX,),
        # FlashAttention 3 may be absent; the sparse layers use their own kernels in any case.
        flags=QWEN_FLAGS | {"attention_backend": "triton", "mm_attention_backend": "triton_attn",
                            "ple_offload_embedding": False, "chunked_prefill_size": 4096,
                            "max_running_requests": 8, "mem_fraction_static": 0.5,
                            "context_length": 65536}),
    "qwen3-next-gdn": Profile(
        layers={PREFILL: 1, DECODE: 1}, cases=GDN_CASES, tokens=31000,
        flags=QWEN_FLAGS | {"attention_backend": "triton", "page_size": 64, "chunked_prefill_size": 4096,
                            "linear_attn_decode_backend": "flashinfer", "max_running_requests": 8,
                            "mem_fraction_static": 0.5, "context_length": 65536}),
}
# SGLang 0.5.23 forces both page sizes. Qwen's recurrent states are kept at the ends of prefill chunks, so a
# hit can stay up to one chunk below the shared prefix.
PUBLISHED = {
    "deepseek41": Profile(
        checkpoint="deepseek-ai/DeepSeek-V4.1-Flash", prompt_rule=SPAN_RULE, page_size=256,
        phases={"prefill": [ROUTER, SPARSE_128, SPARSE_640, *GROUPED], "decode": [ROUTER, MIXED, *GROUPED]},
        layers={SPARSE_128: 1, SPARSE_640: 10, MIXED: 10, ROUTER: 20, GATE_UP: 20, DOWN: 20},
        flags=DEEPSEEK_FLAGS | {"tp_size": 4, "ep_size": 4, "dp_size": 1, "chunked_prefill_size": 4096,
                                "schedule_policy": "fcfs", "context_length": 1_048_576},
        environment=DEEPSEEK_ENVIRONMENT, blackwell_environment=V41_LAYOUT, substitutions=HOPPER,
        ties=(ROUTER,)),
    "qwen-next": Profile(
        checkpoint="nvidia/Qwen3.8-Flash-Next-NVFP4", prompt_rule=SPAN_RULE, page_size=64, hit_slack=4096,
        phases={"prefill": [INDEX, ATTENTION], "decode": [INDEX, ATTENTION]},
        layers={INDEX: 23, ATTENTION: 23}, ties=(INDEX,),
        flags=QWEN_FLAGS | {"ple_offload_embedding": True, "chunked_prefill_size": 4096,
                            "schedule_policy": "fcfs", "context_length": 262_144}),
    "qwen3-next-gdn": Profile(
        layers={PREFILL: 21, DECODE: 21},
        flags=QWEN_FLAGS | {"tp_size": 4, "page_size": 64, "chunked_prefill_size": 8192,
                            "linear_attn_decode_backend": "flashinfer", "context_length": 262_144}),
}
PROFILES = {"seeded": SEEDED, "published": PUBLISHED}
KINDS = sorted(SEEDED)


def find_profile(kind: str, name: str) -> Profile:
    return PROFILES[name][kind]


def expected_definitions(profile: Profile, cases: list[str]) -> list[str]:
    """Definitions of which the cases must yield at least one call, in the profile's order."""
    wanted = {name for case in cases for steps in profile.cases[case].keep.values() for name in steps}
    return [name for name in profile.layers if name in wanted]
