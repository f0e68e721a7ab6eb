"""Sizes and config.json of the Qwen-Flash-Next-shaped checkpoint; its weights are in checkpoint.py."""

from typing import Any

STD = 0.02
VOCABULARY, LAYERS, EXPERTS = 32768, 4, 8
HIDDEN, QK_HEADS, VALUE_HEADS, MIXED, EXPERT_WIDTH, HYPER, LOW_RANK = 2560, 16, 48, 10240, 640, 4, 320
NGRAM_ROWS, NGRAM_PARTS = 66816, 4


def qwen_next_config() -> dict[str, Any]:
    """Return the content of config.json."""
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "image_token_id": 32000,
        "video_token_id": 32001,
        "vision_start_token_id": 32002,
        "vision_end_token_id": 32003,
        "text_config": _text_config(),
        "vision_config": _vision_config(),
    }


def _text_config() -> dict[str, Any]:
    return {
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


def _vision_config() -> dict[str, Any]:
    return {
        "deepstack_visual_indexes": [],
        "depth": 1,
        "hidden_size": 64,
        "num_heads": 1,
        "intermediate_size": 64,
        "out_hidden_size": HIDDEN,
    }
