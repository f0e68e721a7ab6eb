"""Checkpoints of the shapes of Qwen 3.8 Flash-Next and of one tensor-parallel rank of Qwen3-Next.

True: every captured operator's dimensions, the layer kinds and their order, all tensor names. Truncated:
layers, experts, vocabulary, n-gram tables; for Qwen3-Next the layer is one tensor-parallel rank's (4 / 8
linear heads). Tensor names and configuration keys are those SGLang 0.5.23 loads. Standard library only.
"""

import math
from collections.abc import Iterator
from typing import Any

from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.weights import Drawn, Listed, index_document, rounded

STD = 0.02
VOCABULARY, LAYERS, EXPERTS = 32768, 4, 8
HIDDEN, QK_HEADS, VALUE_HEADS, MIXED, EXPERT_WIDTH, HYPER, LOW_RANK = 2560, 16, 48, 10240, 640, 4, 320
NGRAM_ROWS, NGRAM_PARTS = 66816, 4
# Convolution weights: queries and keys are normalised afterwards; those of the values decide how far states
# and outputs lie above the comparison's absolute tolerance of 0.01. With 1.0 the engine's prefill used 82 to
# 99 % of the tolerance of the states on an H200; its errors scaled to 0.45 use about half, and six of ten
# elements of a state still exceed 0.01, so that zeros fail.
QK_CONV_STD, VALUE_CONV_STD = 0.3, 0.45
RULE = (
    "linear weights with a standard deviation of 0.02, embeddings 1, convolutions 0.3 (values of "
    "Qwen3-Next 0.45), norms constant, A_log = log of a spread over 1..16, dt_bias = log(expm1) of a log "
    "spread over 0.001..0.1"
)


def qwen_next_checkpoint() -> Pipeline:
    """Qwen 3.8 Flash-Next: three gated-delta layers, then one of sparse attention."""
    parts = [("globals", list(_next_globals()))]
    for layer in range(LAYERS):
        weights = [*_hyper_connections(layer), *_mixer(layer), *_experts(layer)]
        parts.append((f"layer{layer}", weights))
    parts.append(("ngrams", list(_ngrams())))
    return _pipeline(
        "qwen-next",
        "Qwen3.8-Flash-Next-shaped, 4 layers",
        parts,
        _next_config(),
        "hidden size 2560, 24 query and 2 key heads of 256, 4 index heads of 128, top 512 blocks of 4, "
        "16 / 48 linear heads, 4 hyper-connections",
        "4 layers instead of 48, 8 experts instead of 512 (2 a token), vocabulary 32768, n-gram tables of "
        "66,816 rows, no vision weights",
    )


def _pipeline(kind: str, title: str, parts: list, config: dict, true_parts: str, truncated: str) -> Pipeline:
    components = [Component(name, f"model-{name}.safetensors", weights, flat=True) for name, weights in parts]
    return Pipeline(
        kind=kind,
        title=title,
        path_must_contain="",
        true_parts=true_parts,
        truncated_parts=truncated,
        components=components,
        rule=RULE,
        documents={"config.json": config, "model.safetensors.index.json": index_document(components)},
    )


def decay_rates(heads: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A_log and dt_bias of a layer, for per-token decays of about 0.3 to 0.998, as trained models have."""
    spread = [(head + 0.5) / heads for head in range(heads)]
    # Neither 8 nor 48 heads have a common factor with 5.
    shuffled = [spread[(head * 5 + 2) % heads] for head in range(heads)]
    rates = tuple(rounded(math.log(1 + 15 * part), 2**-10) for part in spread)
    steps = (math.exp(math.log(1e-3) + part * math.log(100)) for part in shuffled)
    return rates, tuple(rounded(math.log(math.expm1(step)), 2**-5) for step in steps)


def _decay(prefix: str, heads: int) -> Iterator[Listed]:
    rates, biases = decay_rates(heads)
    yield Listed(f"{prefix}.A_log", (heads,), rates, "float32")
    yield Listed(f"{prefix}.dt_bias", (heads,), biases)


def _next_globals() -> Iterator[Any]:
    prefix = "model.language_model"
    yield Drawn(f"{prefix}.embed_tokens.weight", (VOCABULARY, HIDDEN), 1.0)
    yield Drawn("lm_head.weight", (VOCABULARY, HIDDEN), STD)
    yield from _mix(f"{prefix}.hyper_connection_mixer")


def _mix(prefix: str) -> Iterator[Any]:
    wide = HYPER * HIDDEN
    yield Listed(f"{prefix}.hc_norm.weight", (wide,), (0.0,))
    yield Drawn(f"{prefix}.input_mix_weight_down.weight", (LOW_RANK, wide), STD)
    yield Drawn(f"{prefix}.input_mix_weight_up.weight", (wide, LOW_RANK), STD)


def _hyper_connections(layer: int) -> Iterator[Any]:
    for half in ("attn", "mlp"):
        prefix = f"model.language_model.layers.{layer}.{half}_hyper_connection"
        yield from _mix(prefix)
        yield Drawn(f"{prefix}.block_inject_weight.weight", (HYPER, HYPER * HIDDEN), STD)


def _mixer(layer: int) -> Iterator[Any]:
    prefix = f"model.language_model.layers.{layer}"
    if layer < LAYERS - 1:
        linear, values = f"{prefix}.linear_attn", VALUE_HEADS * 128
        for name, rows in (
            ("in_proj_qkv", MIXED),
            ("in_proj_z", values),
            ("in_proj_b", VALUE_HEADS),
            ("in_proj_a", VALUE_HEADS),
        ):
            yield Drawn(f"{linear}.{name}.weight", (rows, HIDDEN), STD)
        yield Drawn(f"{linear}.conv1d.weight", (MIXED, 1, 4), QK_CONV_STD)
        yield from _decay(linear, VALUE_HEADS)
        yield Listed(f"{linear}.norm.weight", (128,), (1.0,))
        yield Drawn(f"{linear}.out_proj.weight", (HIDDEN, values), STD)
        return
    attention = f"{prefix}.self_attn"
    # Value heads get a standard deviation of 0.5: with larger ones the engine's prefill kernel, which rounds
    # its probabilities to BF16, leaves the tolerance in rows that see few keys.
    for name, rows, columns in (
        ("q_proj", 12288, HIDDEN),
        ("k_proj", 512, HIDDEN),
        ("v_proj", 512, HIDDEN),
        ("o_proj", HIDDEN, 6144),
        ("indexer.index_qk_proj", 640, HIDDEN),
    ):
        yield Drawn(f"{attention}.{name}.weight", (rows, columns), STD)
    for name, size in (("q_norm", 256), ("k_norm", 256), ("indexer.q_layernorm", 128), ("indexer.k_layernorm", 128)):
        yield Listed(f"{attention}.{name}.weight", (size,), (0.0,))


def _experts(layer: int) -> Iterator[Any]:
    prefix, width = f"model.language_model.layers.{layer}.mlp", EXPERT_WIDTH
    for name, shape in (
        ("gate.weight", (EXPERTS, HIDDEN)),
        ("shared_expert_gate.weight", (1, HIDDEN)),
        ("experts.gate_up_proj", (EXPERTS, 2 * width, HIDDEN)),
        ("experts.down_proj", (EXPERTS, HIDDEN, width)),
        ("shared_expert.gate_proj.weight", (width, HIDDEN)),
        ("shared_expert.up_proj.weight", (width, HIDDEN)),
        ("shared_expert.down_proj.weight", (HIDDEN, width)),
    ):
        yield Drawn(f"{prefix}.{name}", shape, STD)


def _ngrams() -> Iterator[Any]:
    prefix, wide = "model.language_model.layers.1.ple", HYPER * HIDDEN
    yield Drawn(f"{prefix}.key_proj.weight", (wide, HIDDEN), STD)
    yield Drawn(f"{prefix}.value_proj.weight", (HIDDEN, HIDDEN), STD)
    yield Drawn(f"{prefix}.conv1d.weight", (wide, 1, 4), STD)
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield Listed(f"{prefix}.{name}.weight", (wide,), (0.0,))
    for part in range(NGRAM_PARTS):
        yield Drawn(
            f"{prefix}.ple_embedding.ngram_embedding.shard_{part}.weight", (NGRAM_ROWS // NGRAM_PARTS, 160), STD
        )


def _next_config() -> dict[str, Any]:
    text = {
        "model_type": "qwen4_exp_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "full_attention_interval": LAYERS,
        "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "output_gate_type": "sigmoid",
        "linear_num_key_heads": QK_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_WIDTH,
        "shared_expert_intermediate_size": EXPERT_WIDTH,
        "hc_count": HYPER,
        "hc_lowrank": LOW_RANK,
        "ple_layer_ids": [2],
        "ple_embed_dim": HIDDEN,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 4096,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": NGRAM_PARTS,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": STD,
        "dtype": "bfloat16",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
        },
    }
    vision = {
        "deepstack_visual_indexes": [],
        "depth": 1,
        "hidden_size": 64,
        "num_heads": 1,
        "intermediate_size": 64,
        "out_hidden_size": HIDDEN,
    }
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "image_token_id": 32000,
        "video_token_id": 32001,
        "vision_start_token_id": 32002,
        "vision_end_token_id": 32003,
        "text_config": text,
        "vision_config": vision,
    }
