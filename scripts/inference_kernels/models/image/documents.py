"""Sizes and configuration files of the Qwen-Image-2.1-Turbo-shaped pipeline; its weights are in checkpoint.py.

Configuration keys are those that SGLang 0.5.23 loads. Standard library only.
"""

WIDTH, HEADS, HEAD_DIM, MLP_RATIO, LATENT_CHANNELS = 4096, 32, 128, 3, 64
TURBO_SIGMAS = [1.0, 0.978453, 0.95418, 0.926626, 0.89508, 0.845148, 0.704534, 0.414568]
TEXT_WIDTH, TEXT_LAYERS, TEXT_HEADS, TEXT_KV_HEADS, TEXT_MLP, VOCABULARY = 128, 2, 2, 1, 256, 320
VISION_WIDTH, VISION_DEPTH, VISION_MLP, VISION_POSITIONS, VISION_PATCH = 128, 2, 256, 2304, (3, 2, 16, 16)
VAE_WIDTH, VAE_STAGES = 16, 5
SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def image_documents(blocks: int) -> dict[str, dict]:
    """Return the configuration files of the pipeline, tokenizer included, by path."""
    transformers, diffusers = "transformers", "diffusers"
    return {
        "model_index.json": {
            "_class_name": "QwenImage21Pipeline",
            "_diffusers_version": "0.37.0",
            "sample_sigmas": TURBO_SIGMAS,
            "processor": [transformers, "Qwen3VLProcessor"],
            "scheduler": [diffusers, "FlowMatchEulerDiscreteScheduler"],
            "text_encoder": [transformers, "Qwen3VLForConditionalGeneration"],
            "transformer": [diffusers, "QwenImage21Transformer2DModel"],
            "vae": [diffusers, "AutoencoderKLQwenImage21"],
        },
        "scheduler/scheduler_config.json": {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "base_image_seq_len": 256,
            "base_shift": 0.5,
            "max_image_seq_len": 4096,
            "max_shift": 1.15,
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "use_dynamic_shifting": False,
        },
        "transformer/config.json": _transformer_document(blocks),
        "vae/config.json": _vae_document(),
        "text_encoder/config.json": _text_encoder_document(),
        "processor/preprocessor_config.json": _preprocessor("image_processor_type", "Qwen2VLImageProcessor"),
        "processor/video_preprocessor_config.json": _preprocessor("video_processor_type", "Qwen3VLVideoProcessor"),
        "processor/tokenizer.json": tokenizer_document(),
        "processor/tokenizer_config.json": {
            "tokenizer_class": "Qwen2TokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "extra_special_tokens": SPECIAL_TOKENS[1:],
            "model_max_length": 4096,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def _transformer_document(blocks: int) -> dict:
    return {
        "_class_name": "QwenImage21Transformer2DModel",
        "patch_size": 1,
        "in_channels": LATENT_CHANNELS,
        "out_channels": LATENT_CHANNELS,
        "num_layers": blocks,
        "attention_head_dim": HEAD_DIM,
        "num_attention_heads": HEADS,
        "context_in_dim": TEXT_WIDTH,
        "mlp_ratio": MLP_RATIO,
        "axes_dims_rope": [16, 56, 56],
        "eps": 1e-6,
        "causal_condition": True,
        "causal_block": True,
    }


def _vae_document() -> dict:
    return {
        "_class_name": "AutoencoderKLQwenImage21",
        "base_dim": VAE_WIDTH,
        "decoder_base_dim": VAE_WIDTH,
        "z_dim": LATENT_CHANNELS,
        "dim_mult": [1] * VAE_STAGES,
        "num_res_blocks": 1,
        "attn_scales": [],
        "temperal_downsample": [False, True, True, True],
        "dropout": 0.0,
        "is_residual": True,
        "in_channels": 4,
        "out_channels": 4,
        "patch_size": None,
        "scale_factor_spatial": 16,
        "scale_factor_temporal": 8,
        "latents_mean": [0.0] * LATENT_CHANNELS,
        "latents_std": [1.0] * LATENT_CHANNELS,
    }


def _text_encoder_document() -> dict:
    token = {name: 256 + index for index, name in enumerate(SPECIAL_TOKENS)}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "image_token_id": token["<|image_pad|>"],
        "video_token_id": token["<|video_pad|>"],
        "vision_start_token_id": token["<|vision_start|>"],
        "vision_end_token_id": token["<|vision_end|>"],
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": VOCABULARY,
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": TEXT_MLP,
            "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": TEXT_HEADS,
            "num_key_value_heads": TEXT_KV_HEADS,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "pad_token_id": token["<|endoftext|>"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000000.0,
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": VISION_DEPTH,
            "hidden_size": VISION_WIDTH,
            "intermediate_size": VISION_MLP,
            "num_heads": 2,
            "out_hidden_size": TEXT_WIDTH,
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": VISION_POSITIONS,
            "deepstack_visual_indexes": [0],
            "hidden_act": "gelu_pytorch_tanh",
        },
    }


def _preprocessor(type_key: str, type_name: str) -> dict:
    return {
        "processor_class": "Qwen3VLProcessor",
        type_key: type_name,
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    }


def tokenizer_document(special_tokens: list[str] = SPECIAL_TOKENS) -> dict:
    """Return a byte-level BPE without merges: one token per UTF-8 byte, then the special tokens from id 256."""
    special = [
        {
            "id": 256 + index,
            "content": name,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index, name in enumerate(special_tokens)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {letter: index for index, letter in enumerate(_byte_letters())},
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _byte_letters() -> list[str]:
    """Return the letter of each byte in byte-level BPE files: itself if printable, else one from U+0100 on."""
    printable = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
