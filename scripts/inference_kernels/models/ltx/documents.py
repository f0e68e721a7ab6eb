"""Sizes and configuration files of the LTX-2.5-shaped pipeline; its weights are in checkpoint.py and codecs.py.

Configuration keys are those that SGLang 0.5.23 loads. Standard library only.
"""

from inference_kernels.models.image.documents import tokenizer_document

VIDEO, AUDIO, HEADS, LATENT, TIME = 4096, 2048, 32, 128, 256
# Name prefix of a stream in the transformer -> its width.
STREAMS = {"": VIDEO, "audio_": AUDIO}
TEXT_WIDTH, TEXT_LAYERS, TEXT_MLP, TEXT_HEADS, TEXT_HEAD_DIM, VOCABULARY = 64, 2, 128, 2, 32, 320
REGISTERS = 128
DECODER_CHANNELS, DECODER_TIME, PIXELS = [2048, 1024, 512, 512, 256], 384, 48
# After each of the first four stages: growth along (time, height, width), and division of the channels.
STRIDES, REDUCTIONS = [[1, 2, 2], [2, 1, 1], [2, 2, 2], [2, 2, 2]], [2, 2, 1, 2]
SPECIAL_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>"]


def ltx_documents(blocks: int) -> dict[str, dict]:
    """Return the configuration files by path, tokenizer included; those of the codecs are in codecs.py."""
    transformers, diffusers, own = "transformers", "diffusers", "ltx2"
    return {
        "model_index.json": {
            "_class_name": "LTX2Pipeline",
            "_diffusers_version": "0.37.0",
            "transformer": [diffusers, "LTX2VideoTransformer3DModel"],
            "text_encoder": [transformers, "Gemma4UnifiedForConditionalGeneration"],
            "tokenizer": [transformers, "GemmaTokenizerFast"],
            "scheduler": [diffusers, "FlowMatchEulerDiscreteScheduler"],
            "connectors": [own, "LTX2TextConnectors"],
            "vae": [diffusers, "AutoencoderKLLTX2Video"],
            "audio_vae": [diffusers, "AutoencoderKLLTX2Audio"],
            "vocoder": [own, "LTX2Vocoder"],
            "diffusion_decoder": [own, "LTX2VideoDiffusionDecoderModel"],
        },
        "scheduler/scheduler_config.json": {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "base_image_seq_len": 1024,
            "base_shift": 0.95,
            "max_image_seq_len": 4096,
            "max_shift": 2.05,
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "shift_terminal": None,
            "use_dynamic_shifting": False,
        },
        "transformer/config.json": _transformer_document(blocks),
        "connectors/config.json": {
            "_class_name": "LTX2TextConnectors",
            "caption_channels": TEXT_WIDTH,
            "text_proj_in_factor": TEXT_LAYERS + 1,
            "per_modality_projections": True,
            "rope_type": "split",
            **_connector_settings("video", VIDEO),
            **_connector_settings("audio", AUDIO),
        },
        "diffusion_decoder/config.json": {
            "_class_name": "LTX2VideoDiffusionDecoderModel",
            "decoder_stage_channels": DECODER_CHANNELS,
            "decoder_stage_depths": [1] * len(DECODER_CHANNELS),
        },
        "text_encoder/config.json": _text_encoder_document(),
        "tokenizer/tokenizer.json": tokenizer_document(SPECIAL_TOKENS),
        "tokenizer/tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "padding_side": "left",
            "model_max_length": 1024,
            **{f"{name.strip('<>')}_token": name for name in SPECIAL_TOKENS},
        },
    }


def _transformer_document(blocks: int) -> dict:
    return {
        "_class_name": "LTX2VideoTransformer3DModel",
        "num_layers": blocks,
        "num_attention_heads": HEADS,
        "attention_head_dim": VIDEO // HEADS,
        "in_channels": LATENT,
        "out_channels": LATENT,
        "cross_attention_dim": VIDEO,
        "audio_num_attention_heads": HEADS,
        "audio_attention_head_dim": AUDIO // HEADS,
        "audio_in_channels": LATENT,
        "audio_out_channels": LATENT,
        "audio_cross_attention_dim": AUDIO,
        "caption_channels": TEXT_WIDTH,
        "norm_eps": 1e-6,
        "patch_size": 1,
        "patch_size_t": 1,
        "frequencies_precision": "float64",
        "rope_type": "split",
    }


def _connector_settings(stream: str, width: int) -> dict[str, int | bool]:
    return {
        f"{stream}_hidden_dim": width,
        f"{stream}_gated_attn": True,
        f"{stream}_connector_num_layers": 1,
        f"{stream}_connector_num_attention_heads": HEADS,
        f"{stream}_connector_attention_head_dim": width // HEADS,
        f"{stream}_connector_num_learnable_registers": REGISTERS,
    }


def _text_encoder_document() -> dict:
    token = {name: 256 + index for index, name in enumerate(SPECIAL_TOKENS)}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    return {
        "architectures": ["Gemma4UnifiedForConditionalGeneration"],
        "model_type": "gemma4_unified",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "vision_config": None,
        "audio_config": None,
        "text_config": {
            "model_type": "gemma4_unified_text",
            "vocab_size": VOCABULARY,
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": TEXT_MLP,
            "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": TEXT_HEADS,
            "num_key_value_heads": 1,
            "head_dim": TEXT_HEAD_DIM,
            "global_head_dim": TEXT_HEAD_DIM,
            "layer_types": ["full_attention"] * TEXT_LAYERS,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "sliding_window": 1024,
            "tie_word_embeddings": True,
            "rope_parameters": {"sliding_attention": rope, "full_attention": rope},
            "pad_token_id": token["<pad>"],
            "eos_token_id": token["<eos>"],
            "bos_token_id": token["<bos>"],
        },
    }
