"""A checkpoint of the Qwen3-Next architecture, cut to the tensor-parallel rank that the contest captured.

True: 4 / 8 linear heads of 128, the layer order. Names and keys are those SGLang 0.5.23 loads. Standard library only.
"""

from collections.abc import Iterator
from typing import Any

from inference_kernels.models.qwen.checkpoint import QK_CONV_STD, VALUE_CONV_STD, decay_weights, language_pipeline
from inference_kernels.models.qwen.config import EXPERTS, LAYERS, STD, VOCABULARY
from inference_kernels.seeded.checkpoint import Pipeline
from inference_kernels.seeded.weights import Drawn, Listed, Rows, Weight

HIDDEN, QK_HEADS, VALUE_HEADS, EXPERT_WIDTH = 2048, 4, 8, 512


def qwen3_next_checkpoint(kind: str) -> Pipeline:
    """Return Qwen3-Next with the linear heads of one of four tensor-parallel ranks."""
    parts = [
        (
            "globals",
            [
                Drawn("model.embed_tokens.weight", (VOCABULARY, HIDDEN), 1.0),
                Drawn("lm_head.weight", (VOCABULARY, HIDDEN), STD),
                Listed("model.norm.weight", (HIDDEN,), (0.0,)),
            ],
        )
    ]
    parts += [(f"layer{layer}", list(_rank_layer(layer))) for layer in range(LAYERS)]
    return language_pipeline(
        kind,
        "Qwen3-Next-shaped, one rank of four, 4 layers",
        parts,
        _rank_config(),
        "4 query and key heads and 8 value heads of 128 in the gated-delta layers, convolution of 4",
        "4 layers instead of 48, heads of one rank of four, 8 experts instead of 512 (2 a token), vocabulary 32768",
    )


def _rank_layer(layer: int) -> Iterator[Weight]:
    prefix = f"model.layers.{layer}"
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield Listed(f"{prefix}.{name}.weight", (HIDDEN,), (0.0,))
    if layer < LAYERS - 1:
        yield from _rank_linear(f"{prefix}.linear_attn")
    else:
        for name, rows, columns in (
            ("q_proj", 2048, HIDDEN),
            ("k_proj", 256, HIDDEN),
            ("v_proj", 256, HIDDEN),
            ("o_proj", HIDDEN, 1024),
        ):
            yield Drawn(f"{prefix}.self_attn.{name}.weight", (rows, columns), STD)
        for name in ("q_norm", "k_norm"):
            yield Listed(f"{prefix}.self_attn.{name}.weight", (256,), (0.0,))
    yield Drawn(f"{prefix}.mlp.gate.weight", (EXPERTS, HIDDEN), STD)
    yield Drawn(f"{prefix}.mlp.shared_expert_gate.weight", (1, HIDDEN), STD)
    for owner in (*(f"experts.{expert}" for expert in range(EXPERTS)), "shared_expert"):
        for name in ("gate_proj", "up_proj"):
            yield Drawn(f"{prefix}.mlp.{owner}.{name}.weight", (EXPERT_WIDTH, HIDDEN), STD)
        yield Drawn(f"{prefix}.mlp.{owner}.down_proj.weight", (HIDDEN, EXPERT_WIDTH), STD)


def _rank_linear(prefix: str) -> Iterator[Weight]:
    keys, values = QK_HEADS * 128, VALUE_HEADS * 128
    # Rows are grouped by query head: its q and k, v and z of its two value heads; then b and a likewise.
    yield Drawn(f"{prefix}.in_proj_qkvz.weight", (2 * keys + 2 * values, HIDDEN), STD)
    yield Drawn(f"{prefix}.in_proj_ba.weight", (2 * VALUE_HEADS, HIDDEN), STD)
    name = f"{prefix}.conv1d.weight"
    yield Rows(
        name, (Drawn(f"{name}.qk", (2 * keys, 1, 4), QK_CONV_STD), Drawn(f"{name}.v", (values, 1, 4), VALUE_CONV_STD))
    )
    yield from decay_weights(prefix, VALUE_HEADS)
    yield Listed(f"{prefix}.norm.weight", (128,), (1.0,))
    yield Drawn(f"{prefix}.out_proj.weight", (HIDDEN, values), STD)


def _rank_config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "full_attention_interval": LAYERS,
        "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        "linear_num_key_heads": QK_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
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
        "moe_intermediate_size": EXPERT_WIDTH,
        "shared_expert_intermediate_size": EXPERT_WIDTH,
        "intermediate_size": EXPERT_WIDTH,
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
