"""A pipeline of the shape of LTX-2.5: its weight list, and what of it is true.

True: the transformer's two streams (video 32 heads of 128, audio 32 heads of 64) and their prompt rows, and
every stage of the diffusion decoder. Truncated: the number of blocks, and the parts that no captured
operator sees (text encoder, connectors' depth, convolutional VAE, audio VAE, vocoder).
Tensor names are those that SGLang 0.5.23 loads. Standard library only.
"""

import math
from collections.abc import Iterator

from inference_kernels.models.image.checkpoint import QK_NORM_WEIGHT
from inference_kernels.models.ltx.codecs import codec_documents, codecs
from inference_kernels.models.ltx.documents import (
    AUDIO,
    DECODER_CHANNELS,
    DECODER_TIME,
    HEADS,
    LATENT,
    PIXELS,
    REDUCTIONS,
    REGISTERS,
    STREAMS,
    STRIDES,
    TEXT_HEAD_DIM,
    TEXT_HEADS,
    TEXT_LAYERS,
    TEXT_MLP,
    TEXT_WIDTH,
    TIME,
    VIDEO,
    VOCABULARY,
    ltx_documents,
)
from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.weights import Listed, Weight, affine, linear, norm

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


def ltx_pipeline(kind: str, blocks: int) -> Pipeline:
    """Return the pipeline with `blocks` transformer blocks (the published one has 48)."""
    file = "diffusion_pytorch_model.safetensors"
    return Pipeline(
        kind=kind,
        title=f"LTX-2.5-shaped, {blocks} block(s)",
        path_must_contain="ltx-2.5-diffusers",
        true_parts=TRUE_PARTS,
        truncated_parts=TRUNCATED_PARTS.format(blocks=blocks),
        documents=ltx_documents(blocks) | codec_documents(),
        components=[
            Component("transformer", file, list(_transformer_weights(blocks))),
            Component("text_encoder", "model.safetensors", list(_text_encoder_weights())),
            Component("connectors", file, list(_connector_weights())),
            Component("diffusion_decoder", file, list(_decoder_weights())),
            *codecs(file),
        ],
    )


def _transformer_weights(blocks: int) -> Iterator[Weight]:
    yield linear("keyframes_abs_pos_embedding", (1, VIDEO))
    for prefix, width in STREAMS.items():
        yield linear(f"{prefix}scale_shift_table", (2, width))
        yield from affine(f"{prefix}patchify_proj", (width, LATENT))
        yield from affine(f"{prefix}proj_out", (LATENT, width))
    # Modulation by the timestep: name -> (width of the stream, number of vectors).
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
        yield linear(f"{prefix}.{stream}scale_shift_table", (9, width))
        yield linear(f"{prefix}.{stream}prompt_scale_shift_table", (2, width))
        yield linear(f"{prefix}.{cross}a2v_cross_attn_scale_shift_table", (5, width))
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
    yield linear(f"{prefix}.ff.proj_in.weight", (4 * VIDEO, VIDEO))
    yield linear(f"{prefix}.ff.proj_out.weight", (VIDEO, 4 * VIDEO), gain=1.6)
    yield from affine(f"{prefix}.audio_ff.proj_in", (4 * AUDIO, AUDIO))
    yield from affine(f"{prefix}.audio_ff.proj_out", (AUDIO, 4 * AUDIO), gain=1.6)


def _attention(prefix: str, queries: int, keys: int, heads: int, norms: str) -> Iterator[Weight]:
    """Yield projections with biases, one gate per head, and norms over all heads together."""
    yield from affine(f"{prefix}.to_q", (heads, queries))
    yield from affine(f"{prefix}.to_k", (heads, keys))
    yield from affine(f"{prefix}.to_v", (heads, keys))
    yield from affine(f"{prefix}.to_gate_logits", (HEADS, queries))
    yield from affine(f"{prefix}.to_out.0", (queries, heads), gain=2.0)
    for side in "qk":
        yield Listed(f"{prefix}.{norms.format(side)}.weight", (heads,), QK_NORM_WEIGHT)


def _connector_weights() -> Iterator[Weight]:
    for stream, width in (("video", VIDEO), ("audio", AUDIO)):
        prefix = f"{stream}_connector.transformer_blocks.0"
        yield from affine(f"{stream}_aggregate_embed", (width, TEXT_WIDTH * (TEXT_LAYERS + 1)))
        yield linear(f"{stream}_connector.learnable_registers", (REGISTERS, width), gain=math.sqrt(width))
        yield from _attention(f"{prefix}.attn1", width, width, width, "norm_{}")
        yield from affine(f"{prefix}.ff.net.0.proj", (4 * width, width))
        yield from affine(f"{prefix}.ff.net.2", (width, 4 * width), gain=1.6)


def _text_encoder_weights() -> Iterator[Weight]:
    base = "model.language_model"
    yield linear(f"{base}.embed_tokens.weight", (VOCABULARY, TEXT_WIDTH))
    for layer in range(TEXT_LAYERS):
        prefix, heads = f"{base}.layers.{layer}", TEXT_HEADS * TEXT_HEAD_DIM
        for name, rows in (("q_proj", heads), ("k_proj", TEXT_HEAD_DIM), ("v_proj", TEXT_HEAD_DIM)):
            yield linear(f"{prefix}.self_attn.{name}.weight", (rows, TEXT_WIDTH))
        yield linear(f"{prefix}.self_attn.o_proj.weight", (TEXT_WIDTH, heads))
        for name in ("gate_proj", "up_proj"):
            yield linear(f"{prefix}.mlp.{name}.weight", (TEXT_MLP, TEXT_WIDTH))
        yield linear(f"{prefix}.mlp.down_proj.weight", (TEXT_WIDTH, TEXT_MLP))
        for name in ("q_norm", "k_norm"):
            yield norm(f"{prefix}.self_attn.{name}", TEXT_HEAD_DIM)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield norm(f"{prefix}.{name}_layernorm", TEXT_WIDTH)
        yield Listed(f"{prefix}.layer_scalar", (1,), 1.0)
    yield norm(f"{base}.norm", TEXT_WIDTH)


def _decoder_weights() -> Iterator[Weight]:
    last = DECODER_CHANNELS[-1]
    for name, constant in (("latents_mean", 0.0), ("latents_std", 1.0), ("decoder.type_emb", 0.0)):
        yield Listed(name, (LATENT,), constant)
    yield from affine("decoder.conv_in", (DECODER_CHANNELS[0], LATENT))
    for stage, channels in enumerate(DECODER_CHANNELS[:-1]):
        yield from _neighborhood_block(f"decoder.det_stages.{stage}.0", channels)
        grown = math.prod(STRIDES[stage]) * channels // REDUCTIONS[stage]
        yield from affine(f"decoder.upsamples.{stage}.proj", (grown, channels))
    yield from affine("decoder.t_embedder.timestep_embedder.linear_1", (DECODER_TIME, TIME))
    yield from affine("decoder.t_embedder.timestep_embedder.linear_2", (DECODER_TIME, DECODER_TIME), gain=1.6)
    yield from affine("decoder.shared_adaln.proj", (7 * last, DECODER_TIME))
    yield from affine("decoder.conv_in_x_t", (last, PIXELS))
    yield linear("decoder.diff_blocks.0.scale_shift_table", (7, last))
    yield from affine("decoder.diff_blocks.0.context_proj", (last, last))
    yield from _neighborhood_block("decoder.diff_blocks.0", last)
    yield norm("decoder.norm_out", last)
    yield from affine("decoder.conv_out", (PIXELS, last))


def _neighborhood_block(prefix: str, channels: int) -> Iterator[Weight]:
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        yield from affine(f"{prefix}.attn.{name}", (channels, channels))
    for name in ("norm_q", "norm_k"):
        yield Listed(f"{prefix}.attn.{name}.weight", (64,), QK_NORM_WEIGHT)
    for name in ("norm1", "norm2"):
        yield norm(f"{prefix}.{name}", channels)
    for name in ("w_up", "w_gate"):
        yield linear(f"{prefix}.mlp.{name}.weight", (4 * channels, channels))
    yield linear(f"{prefix}.mlp.w_down.weight", (channels, 4 * channels), gain=1.6)
