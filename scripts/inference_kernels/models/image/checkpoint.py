"""A pipeline of the shape of Qwen-Image-2.1-Turbo: its configuration files, tokenizer and weight list.

True: transformer width 4096, 32 heads of 128, MLP 12288, RoPE split, eight Turbo sigmas, all tensor names.
Truncated: the number of blocks, and the text encoder (Qwen3-VL) and VAE, which no captured operator sees.
Names and configuration keys are those that SGLang 0.5.23 loads. Standard library only.
"""

import math
from collections.abc import Iterator

from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.weights import Weight, affine

WIDTH, HEADS, HEAD_DIM, MLP_RATIO, LATENT_CHANNELS = 4096, 32, 128, 3, 64
TURBO_SIGMAS = [1.0, 0.978453, 0.95418, 0.926626, 0.89508, 0.845148, 0.704534, 0.414568]
TEXT_WIDTH, TEXT_LAYERS, TEXT_HEADS, TEXT_KV_HEADS, TEXT_MLP, VOCABULARY = 128, 2, 2, 1, 256, 320
VISION_WIDTH, VISION_DEPTH, VISION_MLP, VISION_POSITIONS, VISION_PATCH = 128, 2, 256, 2304, (3, 2, 16, 16)
VAE_WIDTH, VAE_STAGES = 16, 5
# On both sides of q.k: scores get a standard deviation of 2.25, so that attention is peaked enough for its
# outputs to stay well above the comparison's absolute tolerance at thousands of keys.
QK_NORM_WEIGHT = 1.5
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
TRUE_PARTS = (
    "transformer width 4096, 32 heads of 128, MLP 12288, RoPE 16/56/56, tensor names and layouts, "
    "bfloat16, the eight Turbo sigmas"
)
TRUNCATED_PARTS = (
    "{blocks} transformer blocks instead of 32; a small Qwen3-VL text encoder (width 128, 2 "
    "layers, a vocabulary of bytes) and a small VAE (width 16)"
)


def image_pipeline(blocks: int) -> Pipeline:
    """The pipeline with `blocks` transformer blocks (the published one has 32)."""
    diffusers_file = "diffusion_pytorch_model.safetensors"
    return Pipeline(
        kind="image",
        title=f"Qwen-Image-2.1-Turbo-shaped, {blocks} blocks",
        path_must_contain="qwen-image-2.1",
        true_parts=TRUE_PARTS,
        truncated_parts=TRUNCATED_PARTS.format(blocks=blocks),
        documents=_documents(blocks),
        texts={"processor/chat_template.jinja": CHAT_TEMPLATE},
        components=[
            Component("transformer", diffusers_file, list(_transformer_weights(blocks))),
            Component("text_encoder", "model.safetensors", list(_text_encoder_weights())),
            Component("vae", diffusers_file, list(_vae_weights())),
        ],
    )


def _documents(blocks: int) -> dict[str, dict]:
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
        "transformer/config.json": {
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
        },
        "vae/config.json": {
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
        },
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
    """A byte-level BPE without merges: one token a UTF-8 byte, then the special tokens from id 256."""
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
    """The letter that stands for each byte in byte-level BPE files: itself, or one from U+0100 on."""
    printable = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _transformer_weights(blocks: int) -> Iterator[Weight]:
    hidden = WIDTH * MLP_RATIO
    # A gain makes up for what the activation function in front of a layer takes away, so that outputs have a
    # root mean square of about 1.
    yield Weight("img_in.weight", (WIDTH, LATENT_CHANNELS))
    yield Weight("txt_in.text_norm.weight", (TEXT_WIDTH,), constant=0.0)
    yield Weight("txt_in.in_layer.weight", (WIDTH, TEXT_WIDTH))
    yield Weight("txt_in.out_layer.weight", (WIDTH, WIDTH), gain=1.6)
    yield Weight("time_text_embed.timestep_embedder.linear_1.weight", (WIDTH, 256), gain=1.4)
    yield Weight("time_text_embed.timestep_embedder.linear_2.weight", (WIDTH, WIDTH), gain=1.6)
    yield Weight("modulation.1.weight", (4 * WIDTH, WIDTH))
    yield Weight("norm_out.linear.weight", (WIDTH, WIDTH))
    yield Weight("proj_out.weight", (LATENT_CHANNELS, WIDTH))
    for block in range(blocks):
        prefix = f"transformer_blocks.{block}"
        for layer in ("to_q", "to_k", "to_v"):
            yield Weight(f"{prefix}.attn.{layer}.weight", (WIDTH, WIDTH))
        yield Weight(f"{prefix}.attn.to_out.0.weight", (WIDTH, WIDTH), gain=2.0)
        for norm in ("norm_q", "norm_k"):
            yield Weight(f"{prefix}.attn.{norm}.weight", (HEAD_DIM,), constant=QK_NORM_WEIGHT)
        for layer in ("gate_layer", "proj"):
            yield Weight(f"{prefix}.img_mlp.{layer}.weight", (hidden, WIDTH))
        yield Weight(f"{prefix}.img_mlp.out.weight", (WIDTH, hidden), gain=2.0)


def _text_encoder_weights() -> Iterator[Weight]:
    embedding_gain = math.sqrt(TEXT_WIDTH)
    yield Weight("model.language_model.embed_tokens.weight", (VOCABULARY, TEXT_WIDTH), gain=embedding_gain)
    for layer in range(TEXT_LAYERS):
        prefix = f"model.language_model.layers.{layer}"
        heads, groups = TEXT_HEADS * HEAD_DIM, TEXT_KV_HEADS * HEAD_DIM
        for name, rows in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
            yield Weight(f"{prefix}.self_attn.{name}.weight", (rows, TEXT_WIDTH))
        yield Weight(f"{prefix}.self_attn.o_proj.weight", (TEXT_WIDTH, heads))
        for name in ("gate_proj", "up_proj"):
            yield Weight(f"{prefix}.mlp.{name}.weight", (TEXT_MLP, TEXT_WIDTH))
        yield Weight(f"{prefix}.mlp.down_proj.weight", (TEXT_WIDTH, TEXT_MLP))
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            yield Weight(f"{prefix}.{name}.weight", (HEAD_DIM,), constant=1.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield Weight(f"{prefix}.{name}.weight", (TEXT_WIDTH,), constant=1.0)
    yield Weight("model.language_model.norm.weight", (TEXT_WIDTH,), constant=1.0)
    yield from _vision_weights("model.visual")


def _vision_weights(prefix: str) -> Iterator[Weight]:
    yield from affine(f"{prefix}.patch_embed.proj", (VISION_WIDTH, *VISION_PATCH))
    yield Weight(f"{prefix}.pos_embed.weight", (VISION_POSITIONS, VISION_WIDTH))
    for block in range(VISION_DEPTH):
        yield from affine(f"{prefix}.blocks.{block}.attn.qkv", (3 * VISION_WIDTH, VISION_WIDTH))
        yield from affine(f"{prefix}.blocks.{block}.attn.proj", (VISION_WIDTH, VISION_WIDTH))
        yield from affine(f"{prefix}.blocks.{block}.mlp.linear_fc1", (VISION_MLP, VISION_WIDTH))
        yield from affine(f"{prefix}.blocks.{block}.mlp.linear_fc2", (VISION_WIDTH, VISION_MLP))
        for norm in ("norm1", "norm2"):
            yield from _norm(f"{prefix}.blocks.{block}.{norm}", VISION_WIDTH)
    merged = 4 * VISION_WIDTH
    for merger, norm_width in (("merger", VISION_WIDTH), ("deepstack_merger_list.0", merged)):
        yield from _norm(f"{prefix}.{merger}.norm", norm_width)
        yield from affine(f"{prefix}.{merger}.linear_fc1", (merged, merged))
        yield from affine(f"{prefix}.{merger}.linear_fc2", (TEXT_WIDTH, merged))


def _vae_weights() -> Iterator[Weight]:
    width, latent = VAE_WIDTH, LATENT_CHANNELS
    yield from affine("encoder.conv_in", (width, 4, 3, 3))
    yield from affine("encoder.conv_out", (2 * latent, width, 3, 3), gain=1.8)
    yield from affine("quant_conv", (2 * latent, 2 * latent, 1, 1))
    yield from affine("post_quant_conv", (latent, latent, 1, 1))
    yield from affine("decoder.conv_in", (width, latent, 3, 3))
    yield from affine("decoder.conv_out", (4, width, 3, 3))
    for half in ("encoder", "decoder"):
        yield Weight(f"{half}.norm_out.gamma", (width, 1, 1, 1), constant=1.0)
        yield Weight(f"{half}.mid_block.attentions.0.norm.gamma", (width, 1, 1), constant=1.0)
        yield from affine(f"{half}.mid_block.attentions.0.to_qkv", (3 * width, width, 1, 1))
        yield from affine(f"{half}.mid_block.attentions.0.proj", (width, width, 1, 1))
        for index in (0, 1):
            yield from _resnet(f"{half}.mid_block.resnets.{index}")
    for stage in range(VAE_STAGES):
        down, up = f"encoder.down_blocks.{stage}", f"decoder.up_blocks.{stage}"
        yield from _resnet(f"{down}.resnets.0")
        yield from _resnet(f"{up}.resnets.0")
        yield from _resnet(f"{up}.resnets.1")
        if stage < VAE_STAGES - 1:
            yield from affine(f"{down}.downsampler.resample.1", (width, width, 3, 3))
            yield from affine(f"{up}.upsampler.resample.1", (width, width, 3, 3))
        if 0 < stage < VAE_STAGES - 1:
            yield from affine(f"{down}.downsampler.time_conv", (width, width, 1, 1))
        if stage < VAE_STAGES - 2:
            yield from affine(f"{up}.upsampler.time_conv", (2 * width, width, 1, 1))


def _resnet(prefix: str) -> Iterator[Weight]:
    for index in (1, 2):
        yield Weight(f"{prefix}.norm{index}.gamma", (VAE_WIDTH, 1, 1, 1), constant=1.0)
        yield from affine(f"{prefix}.conv{index}", (VAE_WIDTH, VAE_WIDTH, 3, 3), gain=1.6)


def _norm(prefix: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{prefix}.weight", (width,), constant=1.0)
    yield Weight(f"{prefix}.bias", (width,), constant=0.0)
