"""A seeded checkpoint of the Qwen3-Next architecture, cut to the rank that the contest captured."""

from collections.abc import Iterator
from typing import Any

from inference_kernels.models.qwen.checkpoint import (
    EXPERTS,
    LAYERS,
    QK_CONV_STD,
    STD,
    VALUE_CONV_STD,
    VOCABULARY,
    _decay,
    _pipeline,
)
from inference_kernels.seeded.checkpoint import Pipeline
from inference_kernels.seeded.weights import Drawn, Listed, Rows

NEXT_HIDDEN, NEXT_QK_HEADS, NEXT_VALUE_HEADS, NEXT_WIDTH = 2048, 4, 8, 512


def qwen3_next_checkpoint() -> Pipeline:
    """Qwen3-Next with the linear heads of one of four tensor-parallel ranks."""
    parts = [
        (
            "globals",
            [
                Drawn("model.embed_tokens.weight", (VOCABULARY, NEXT_HIDDEN), 1.0),
                Drawn("lm_head.weight", (VOCABULARY, NEXT_HIDDEN), STD),
                Listed("model.norm.weight", (NEXT_HIDDEN,), (0.0,)),
            ],
        )
    ]
    parts += [(f"layer{layer}", list(_rank_layer(layer))) for layer in range(LAYERS)]
    return _pipeline(
        "qwen3-next-gdn",
        "Qwen3-Next-shaped, one rank of four, 4 layers",
        parts,
        _rank_config(),
        "4 query and key heads and 8 value heads of 128 in the gated-delta layers, convolution of 4",
        "4 layers instead of 48, heads of one rank of four, 8 experts instead of 512 (2 a token), vocabulary 32768",
    )


def _rank_layer(layer: int) -> Iterator[Any]:
    prefix = f"model.layers.{layer}"
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield Listed(f"{prefix}.{name}.weight", (NEXT_HIDDEN,), (0.0,))
    if layer < LAYERS - 1:
        yield from _rank_linear(f"{prefix}.linear_attn")
    else:
        for name, rows, columns in (
            ("q_proj", 2048, NEXT_HIDDEN),
            ("k_proj", 256, NEXT_HIDDEN),
            ("v_proj", 256, NEXT_HIDDEN),
            ("o_proj", NEXT_HIDDEN, 1024),
        ):
            yield Drawn(f"{prefix}.self_attn.{name}.weight", (rows, columns), STD)
        for name in ("q_norm", "k_norm"):
            yield Listed(f"{prefix}.self_attn.{name}.weight", (256,), (0.0,))
    yield Drawn(f"{prefix}.mlp.gate.weight", (EXPERTS, NEXT_HIDDEN), STD)
    yield Drawn(f"{prefix}.mlp.shared_expert_gate.weight", (1, NEXT_HIDDEN), STD)
    for owner in (*(f"experts.{expert}" for expert in range(EXPERTS)), "shared_expert"):
        for name in ("gate_proj", "up_proj"):
            yield Drawn(f"{prefix}.mlp.{owner}.{name}.weight", (NEXT_WIDTH, NEXT_HIDDEN), STD)
        yield Drawn(f"{prefix}.mlp.{owner}.down_proj.weight", (NEXT_HIDDEN, NEXT_WIDTH), STD)


def _rank_linear(prefix: str) -> Iterator[Any]:
    keys, values = NEXT_QK_HEADS * 128, NEXT_VALUE_HEADS * 128
    # Rows go by query head: its q and k, its two value heads' v and z; then b and a likewise.
    yield Drawn(f"{prefix}.in_proj_qkvz.weight", (2 * keys + 2 * values, NEXT_HIDDEN), STD)
    yield Drawn(f"{prefix}.in_proj_ba.weight", (2 * NEXT_VALUE_HEADS, NEXT_HIDDEN), STD)
    name = f"{prefix}.conv1d.weight"
    yield Rows(
        name, (Drawn(f"{name}.qk", (2 * keys, 1, 4), QK_CONV_STD), Drawn(f"{name}.v", (values, 1, 4), VALUE_CONV_STD))
    )
    yield from _decay(prefix, NEXT_VALUE_HEADS)
    yield Listed(f"{prefix}.norm.weight", (128,), (1.0,))
    yield Drawn(f"{prefix}.out_proj.weight", (NEXT_HIDDEN, values), STD)


def _rank_config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "dtype": "bfloat16",
        "hidden_size": NEXT_HIDDEN,
        "num_hidden_layers": LAYERS,
        "full_attention_interval": LAYERS,
        "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        "linear_num_key_heads": NEXT_QK_HEADS,
        "linear_num_value_heads": NEXT_VALUE_HEADS,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": NEXT_WIDTH,
        "shared_expert_intermediate_size": NEXT_WIDTH,
        "intermediate_size": NEXT_WIDTH,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "initializer_range": STD,
    }
