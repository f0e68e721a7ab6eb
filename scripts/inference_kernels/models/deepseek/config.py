"""Sizes and config.json of the DeepSeek-V4.1-Flash-shaped checkpoint; its weights are in checkpoint.py."""

from typing import Any

HIDDEN, HEADS, LATENT, VOCABULARY, IMAGE_TOKEN = 5120, 64, 512, 8192, 8000
EXPERTS, EXPERT_WIDTH, EXPERTS_PER_FILE = 384, 2304, 48
RATIOS = [0, 2]
VISION_WIDTH = 64


def deepseek_config() -> dict[str, Any]:
    """Return the content of config.json."""
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": IMAGE_TOKEN,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": _text_config(),
        "vision_config": _vision_config(),
    }


def _text_config() -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_hidden_layers": len(RATIOS),
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": LATENT,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
        "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "sliding_window": 128,
        "compress_ratios": RATIOS,
        "compress_rope_theta": 160000,
        "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1],
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": -1,
        "candidate_topk_blocks": 0,
        "candidate_block_size": 0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
        "num_nextn_predict_layers": 0,
    }


def _vision_config() -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 1,
        "hidden_size": VISION_WIDTH,
        "num_attention_heads": 1,
        "intermediate_size": VISION_WIDTH,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 1024,
        "min_pixels": 295936,
        "max_wh_ratio": None,
    }
