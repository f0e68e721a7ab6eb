"""A pipeline of the shape of Qwen-Image-2.1-Turbo: its weight list, and what of it is true.

True: transformer width 4096, 32 heads of 128, MLP 12288, RoPE split, eight Turbo sigmas, all tensor names.
Truncated: the number of blocks, and the text encoder (Qwen3-VL) and VAE, which no captured operator sees.
Tensor names are those that SGLang 0.5.23 loads. Standard library only.
"""

import math
from collections.abc import Iterator

from inference_kernels.models.image.documents import (
    CHAT_TEMPLATE,
    HEAD_DIM,
    LATENT_CHANNELS,
    MLP_RATIO,
    TEXT_HEADS,
    TEXT_KV_HEADS,
    TEXT_LAYERS,
    TEXT_MLP,
    TEXT_WIDTH,
    VAE_STAGES,
    VAE_WIDTH,
    VISION_DEPTH,
    VISION_MLP,
    VISION_PATCH,
    VISION_POSITIONS,
    VISION_WIDTH,
    VOCABULARY,
    WIDTH,
    image_documents,
)
from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.weights import Listed, Weight, affine, linear

# Applied to queries and keys: scores get a standard deviation of 2.25, so that attention is peaked enough for its
# outputs to stay well above the comparison's absolute tolerance at thousands of keys.
QK_NORM_WEIGHT = 1.5
TRUE_PARTS = (
    "transformer width 4096, 32 heads of 128, MLP 12288, RoPE 16/56/56, tensor names and layouts, "
    "bfloat16, the eight Turbo sigmas"
)
TRUNCATED_PARTS = (
    "{blocks} transformer blocks instead of 32; a small Qwen3-VL text encoder (width 128, 2 "
    "layers, a vocabulary of bytes) and a small VAE (width 16)"
)


def image_pipeline(kind: str, blocks: int) -> Pipeline:
    """Return the pipeline with `blocks` transformer blocks (the published one has 32)."""
    diffusers_file = "diffusion_pytorch_model.safetensors"
    return Pipeline(
        kind=kind,
        title=f"Qwen-Image-2.1-Turbo-shaped, {blocks} blocks",
        path_must_contain="qwen-image-2.1",
        true_parts=TRUE_PARTS,
        truncated_parts=TRUNCATED_PARTS.format(blocks=blocks),
        documents=image_documents(blocks),
        texts={"processor/chat_template.jinja": CHAT_TEMPLATE},
        components=[
            Component("transformer", diffusers_file, list(_transformer_weights(blocks))),
            Component("text_encoder", "model.safetensors", list(_text_encoder_weights())),
            Component("vae", diffusers_file, list(_vae_weights())),
        ],
    )


def _transformer_weights(blocks: int) -> Iterator[Weight]:
    hidden = WIDTH * MLP_RATIO
    # A gain makes up for what the activation function before a layer takes away, so that outputs have a root mean
    # square of about 1.
    yield linear("img_in.weight", (WIDTH, LATENT_CHANNELS))
    yield Listed("txt_in.text_norm.weight", (TEXT_WIDTH,), 0.0)
    yield linear("txt_in.in_layer.weight", (WIDTH, TEXT_WIDTH))
    yield linear("txt_in.out_layer.weight", (WIDTH, WIDTH), gain=1.6)
    yield linear("time_text_embed.timestep_embedder.linear_1.weight", (WIDTH, 256), gain=1.4)
    yield linear("time_text_embed.timestep_embedder.linear_2.weight", (WIDTH, WIDTH), gain=1.6)
    yield linear("modulation.1.weight", (4 * WIDTH, WIDTH))
    yield linear("norm_out.linear.weight", (WIDTH, WIDTH))
    yield linear("proj_out.weight", (LATENT_CHANNELS, WIDTH))
    for block in range(blocks):
        prefix = f"transformer_blocks.{block}"
        for layer in ("to_q", "to_k", "to_v"):
            yield linear(f"{prefix}.attn.{layer}.weight", (WIDTH, WIDTH))
        yield linear(f"{prefix}.attn.to_out.0.weight", (WIDTH, WIDTH), gain=2.0)
        for norm in ("norm_q", "norm_k"):
            yield Listed(f"{prefix}.attn.{norm}.weight", (HEAD_DIM,), QK_NORM_WEIGHT)
        for layer in ("gate_layer", "proj"):
            yield linear(f"{prefix}.img_mlp.{layer}.weight", (hidden, WIDTH))
        yield linear(f"{prefix}.img_mlp.out.weight", (WIDTH, hidden), gain=2.0)


def _text_encoder_weights() -> Iterator[Weight]:
    embedding_gain = math.sqrt(TEXT_WIDTH)
    yield linear("model.language_model.embed_tokens.weight", (VOCABULARY, TEXT_WIDTH), gain=embedding_gain)
    for layer in range(TEXT_LAYERS):
        prefix = f"model.language_model.layers.{layer}"
        heads, groups = TEXT_HEADS * HEAD_DIM, TEXT_KV_HEADS * HEAD_DIM
        for name, rows in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
            yield linear(f"{prefix}.self_attn.{name}.weight", (rows, TEXT_WIDTH))
        yield linear(f"{prefix}.self_attn.o_proj.weight", (TEXT_WIDTH, heads))
        for name in ("gate_proj", "up_proj"):
            yield linear(f"{prefix}.mlp.{name}.weight", (TEXT_MLP, TEXT_WIDTH))
        yield linear(f"{prefix}.mlp.down_proj.weight", (TEXT_WIDTH, TEXT_MLP))
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            yield Listed(f"{prefix}.{name}.weight", (HEAD_DIM,), 1.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield Listed(f"{prefix}.{name}.weight", (TEXT_WIDTH,), 1.0)
    yield Listed("model.language_model.norm.weight", (TEXT_WIDTH,), 1.0)
    yield from _vision_weights("model.visual")


def _vision_weights(prefix: str) -> Iterator[Weight]:
    yield from affine(f"{prefix}.patch_embed.proj", (VISION_WIDTH, *VISION_PATCH))
    yield linear(f"{prefix}.pos_embed.weight", (VISION_POSITIONS, VISION_WIDTH))
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
        yield Listed(f"{half}.norm_out.gamma", (width, 1, 1, 1), 1.0)
        yield Listed(f"{half}.mid_block.attentions.0.norm.gamma", (width, 1, 1), 1.0)
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
        yield Listed(f"{prefix}.norm{index}.gamma", (VAE_WIDTH, 1, 1, 1), 1.0)
        yield from affine(f"{prefix}.conv{index}", (VAE_WIDTH, VAE_WIDTH, 3, 3), gain=1.6)


def _norm(prefix: str, width: int) -> Iterator[Weight]:
    yield Listed(f"{prefix}.weight", (width,), 1.0)
    yield Listed(f"{prefix}.bias", (width,), 0.0)
