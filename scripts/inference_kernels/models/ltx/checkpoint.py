"""A pipeline of the shape of LTX-2.5: its configuration files, tokenizer and weight list.

True: the transformer's two streams (video 32 heads of 128, audio 32 heads of 64) and their prompt rows, and
every stage of the diffusion decoder. Truncated: the number of blocks, and the parts that no captured
operator sees (text encoder, connectors' depth, convolutional VAE, audio VAE, vocoder).
Names and configuration keys are those that SGLang 0.5.23 loads. Standard library only.
"""

import math
from collections.abc import Iterator

from inference_kernels.models.image.checkpoint import QK_NORM_WEIGHT, tokenizer_document
from inference_kernels.models.ltx.codecs import codec_documents, codecs
from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.weights import Weight, affine, norm

VIDEO, AUDIO, HEADS, LATENT, TIME = 4096, 2048, 32, 128, 256
# Name prefix of a stream in the transformer -> its width.
STREAMS = {"": VIDEO, "audio_": AUDIO}
TEXT_WIDTH, TEXT_LAYERS, TEXT_MLP, TEXT_HEADS, TEXT_HEAD_DIM, VOCABULARY = 64, 2, 128, 2, 32, 320
REGISTERS = 128
DECODER_CHANNELS, DECODER_TIME, PIXELS = [2048, 1024, 512, 512, 256], 384, 48
# After each of the first four stages: growth along (time, height, width), and division of the channels.
STRIDES, REDUCTIONS = [[1, 2, 2], [2, 1, 1], [2, 2, 2], [2, 2, 2]], [2, 2, 1, 2]
SPECIAL_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>"]
TRUE_PARTS = (
    "transformer: video width 4096 (32 heads of 128), audio width 2048 (32 heads of 64), gates, "
    "split RoPE, all six attentions of a block; diffusion decoder: channels, heads, windows and "
    "upsampling of all five stages; tensor names, bfloat16, the eight distilled sigmas"
)
TRUNCATED_PARTS = (
    "{blocks} transformer block(s) instead of 48; one block in each decoder stage instead of "
    "4, 6, 4, 2, 8; connectors with one layer instead of 8; a small Gemma text encoder (width "
    "64, 2 layers, a vocabulary of bytes); small convolutional VAE, audio VAE and vocoder"
)


def ltx_pipeline(blocks: int) -> Pipeline:
    """The pipeline with `blocks` transformer blocks (the published one has 48)."""
    file = "diffusion_pytorch_model.safetensors"
    return Pipeline(
        kind="ltx25",
        title=f"LTX-2.5-shaped, {blocks} block(s)",
        path_must_contain="ltx-2.5-diffusers",
        true_parts=TRUE_PARTS,
        truncated_parts=TRUNCATED_PARTS.format(blocks=blocks),
        documents=_documents(blocks) | codec_documents(),
        components=[
            Component("transformer", file, list(_transformer_weights(blocks))),
            Component("text_encoder", "model.safetensors", list(_text_encoder_weights())),
            Component("connectors", file, list(_connector_weights())),
            Component("diffusion_decoder", file, list(_decoder_weights())),
            *codecs(file),
        ],
    )


def _documents(blocks: int) -> dict[str, dict]:
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
        "transformer/config.json": {
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
        },
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


def _transformer_weights(blocks: int) -> Iterator[Weight]:
    yield Weight("keyframes_abs_pos_embedding", (1, VIDEO))
    for prefix, width in STREAMS.items():
        yield Weight(f"{prefix}scale_shift_table", (2, width))
        yield from affine(f"{prefix}patchify_proj", (width, LATENT))
        yield from affine(f"{prefix}proj_out", (LATENT, width))
    # Modulation from the timestep: name -> (width of the stream, number of vectors that it gives).
    for name, (width, vectors) in {
        "adaln_single": (VIDEO, 9),
        "audio_adaln_single": (AUDIO, 9),
        "prompt_adaln_single": (VIDEO, 2),
        "audio_prompt_adaln_single": (AUDIO, 2),
        "av_ca_video_scale_shift_adaln_single": (VIDEO, 4),
        "av_ca_a2v_gate_adaln_single": (VIDEO, 1),
        "av_ca_audio_scale_shift_adaln_single": (AUDIO, 4),
        "av_ca_v2a_gate_adaln_single": (AUDIO, 1),
    }.items():
        yield from affine(f"{name}.emb.timestep_embedder.linear_1", (width, TIME))
        yield from affine(f"{name}.emb.timestep_embedder.linear_2", (width, width), gain=1.6)
        yield from affine(f"{name}.linear", (vectors * width, width))
    for block in range(blocks):
        yield from _block_weights(f"transformer_blocks.{block}")


def _block_weights(prefix: str) -> Iterator[Weight]:
    for stream, width in STREAMS.items():
        cross = "video_" if width == VIDEO else "audio_"
        yield Weight(f"{prefix}.{stream}scale_shift_table", (9, width))
        yield Weight(f"{prefix}.{stream}prompt_scale_shift_table", (2, width))
        yield Weight(f"{prefix}.{cross}a2v_cross_attn_scale_shift_table", (5, width))
    # Attention -> (width of the queries' stream, of the keys' stream, of all heads together).
    for name, (queries, keys, heads) in {
        "attn1": (VIDEO, VIDEO, VIDEO),
        "attn2": (VIDEO, VIDEO, VIDEO),
        "audio_attn1": (AUDIO, AUDIO, AUDIO),
        "audio_attn2": (AUDIO, AUDIO, AUDIO),
        "audio_to_video_attn": (VIDEO, AUDIO, AUDIO),
        "video_to_audio_attn": (AUDIO, VIDEO, AUDIO),
    }.items():
        yield from _attention(f"{prefix}.{name}", queries, keys, heads, "{}_norm")
    # The video stream's MLP has no biases.
    yield Weight(f"{prefix}.ff.proj_in.weight", (4 * VIDEO, VIDEO))
    yield Weight(f"{prefix}.ff.proj_out.weight", (VIDEO, 4 * VIDEO), gain=1.6)
    yield from affine(f"{prefix}.audio_ff.proj_in", (4 * AUDIO, AUDIO))
    yield from affine(f"{prefix}.audio_ff.proj_out", (AUDIO, 4 * AUDIO), gain=1.6)


def _attention(prefix: str, queries: int, keys: int, heads: int, norms: str) -> Iterator[Weight]:
    """Projections with biases, a gate a head, and norms over all heads together."""
    yield from affine(f"{prefix}.to_q", (heads, queries))
    yield from affine(f"{prefix}.to_k", (heads, keys))
    yield from affine(f"{prefix}.to_v", (heads, keys))
    yield from affine(f"{prefix}.to_gate_logits", (HEADS, queries))
    yield from affine(f"{prefix}.to_out.0", (queries, heads), gain=2.0)
    for side in "qk":
        yield Weight(f"{prefix}.{norms.format(side)}.weight", (heads,), constant=QK_NORM_WEIGHT)


def _connector_weights() -> Iterator[Weight]:
    for stream, width in (("video", VIDEO), ("audio", AUDIO)):
        prefix = f"{stream}_connector.transformer_blocks.0"
        yield from affine(f"{stream}_aggregate_embed", (width, TEXT_WIDTH * (TEXT_LAYERS + 1)))
        yield Weight(f"{stream}_connector.learnable_registers", (REGISTERS, width), gain=math.sqrt(width))
        yield from _attention(f"{prefix}.attn1", width, width, width, "norm_{}")
        yield from affine(f"{prefix}.ff.net.0.proj", (4 * width, width))
        yield from affine(f"{prefix}.ff.net.2", (width, 4 * width), gain=1.6)


def _text_encoder_weights() -> Iterator[Weight]:
    base = "model.language_model"
    yield Weight(f"{base}.embed_tokens.weight", (VOCABULARY, TEXT_WIDTH))
    for layer in range(TEXT_LAYERS):
        prefix, heads = f"{base}.layers.{layer}", TEXT_HEADS * TEXT_HEAD_DIM
        for name, rows in (("q_proj", heads), ("k_proj", TEXT_HEAD_DIM), ("v_proj", TEXT_HEAD_DIM)):
            yield Weight(f"{prefix}.self_attn.{name}.weight", (rows, TEXT_WIDTH))
        yield Weight(f"{prefix}.self_attn.o_proj.weight", (TEXT_WIDTH, heads))
        for name in ("gate_proj", "up_proj"):
            yield Weight(f"{prefix}.mlp.{name}.weight", (TEXT_MLP, TEXT_WIDTH))
        yield Weight(f"{prefix}.mlp.down_proj.weight", (TEXT_WIDTH, TEXT_MLP))
        for name in ("q_norm", "k_norm"):
            yield norm(f"{prefix}.self_attn.{name}", TEXT_HEAD_DIM)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield norm(f"{prefix}.{name}_layernorm", TEXT_WIDTH)
        yield Weight(f"{prefix}.layer_scalar", (1,), constant=1.0)
    yield norm(f"{base}.norm", TEXT_WIDTH)


def _decoder_weights() -> Iterator[Weight]:
    last = DECODER_CHANNELS[-1]
    for name, constant in (("latents_mean", 0.0), ("latents_std", 1.0), ("decoder.type_emb", 0.0)):
        yield Weight(name, (LATENT,), constant=constant)
    yield from affine("decoder.conv_in", (DECODER_CHANNELS[0], LATENT))
    for stage, channels in enumerate(DECODER_CHANNELS[:-1]):
        yield from _neighborhood_block(f"decoder.det_stages.{stage}.0", channels)
        grown = math.prod(STRIDES[stage]) * channels // REDUCTIONS[stage]
        yield from affine(f"decoder.upsamples.{stage}.proj", (grown, channels))
    yield from affine("decoder.t_embedder.timestep_embedder.linear_1", (DECODER_TIME, TIME))
    yield from affine("decoder.t_embedder.timestep_embedder.linear_2", (DECODER_TIME, DECODER_TIME), gain=1.6)
    yield from affine("decoder.shared_adaln.proj", (7 * last, DECODER_TIME))
    yield from affine("decoder.conv_in_x_t", (last, PIXELS))
    yield Weight("decoder.diff_blocks.0.scale_shift_table", (7, last))
    yield from affine("decoder.diff_blocks.0.context_proj", (last, last))
    yield from _neighborhood_block("decoder.diff_blocks.0", last)
    yield norm("decoder.norm_out", last)
    yield from affine("decoder.conv_out", (PIXELS, last))


def _neighborhood_block(prefix: str, channels: int) -> Iterator[Weight]:
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        yield from affine(f"{prefix}.attn.{name}", (channels, channels))
    for name in ("norm_q", "norm_k"):
        yield Weight(f"{prefix}.attn.{name}.weight", (64,), constant=QK_NORM_WEIGHT)
    for name in ("norm1", "norm2"):
        yield norm(f"{prefix}.{name}", channels)
    for name in ("w_up", "w_gate"):
        yield Weight(f"{prefix}.mlp.{name}.weight", (4 * channels, channels))
    yield Weight(f"{prefix}.mlp.w_down.weight", (channels, 4 * channels), gain=1.6)
