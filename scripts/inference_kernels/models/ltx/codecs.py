"""The small convolutional VAE, audio VAE and vocoder of the seeded LTX-2.5 pipeline.

No captured operator sees them; they turn a reference image into latents and latents into sound. The audio
VAE's 128 base channels are true: the engine views its latents as 8 channels times 16 mel bins.
"""

from collections.abc import Iterator

from inference_kernels.seeded.checkpoint import Component
from inference_kernels.seeded.weights import Listed, Weight, affine, linear

LATENT = 128
# Encoder block: (width, outputs of its downsampler). Decoder block: (inputs and outputs of its upsampler, width).
VIDEO_ENCODER = [(128, 2), (8, 8), (16, 4), (32, 4)]
VIDEO_DECODER = [(32, 128, 16), (16, 128, 16), (16, 16, 8), (8, 16, 4)]
AUDIO_WIDTH, AUDIO_LATENT, AUDIO_STAGES = 128, 8, 3
VOCODER_WIDTH, VOCODER_KERNELS = 64, [16, 15, 8, 4, 4]


def codec_documents() -> dict[str, dict]:
    layers = [1] * 5
    return {
        "vae/config.json": {
            "_class_name": "AutoencoderKLLTX2Video",
            "block_out_channels": [8, 16, 32, 32],
            "decoder_block_out_channels": [8, 16, 16, 32],
            "layers_per_block": layers,
            "decoder_layers_per_block": layers,
            "latent_channels": LATENT,
        },
        "audio_vae/config.json": {
            "_class_name": "AutoencoderKLLTX2Audio",
            "base_channels": AUDIO_WIDTH,
            "latent_channels": AUDIO_LATENT,
            "output_channels": 2,
            "in_channels": 2,
            "resolution": 256,
            "attn_resolutions": None,
            "dropout": 0.0,
            "mid_block_add_attention": False,
            "ch_mult": [1] * AUDIO_STAGES,
            "num_res_blocks": 1,
            "sample_rate": 16000,
            "mel_hop_length": 160,
            "mel_bins": 64,
            "is_causal": True,
            "double_z": True,
            "norm_type": "pixel",
            "causality_axis": "height",
        },
        "vocoder/config.json": {
            "_class_name": "LTX2Vocoder",
            "hidden_channels": VOCODER_WIDTH,
            "in_channels": LATENT,
            "out_channels": 2,
            "upsample_kernel_sizes": VOCODER_KERNELS,
            "upsample_factors": [6, 5, 2, 2, 2],
            "resnet_kernel_sizes": [3],
            "resnet_dilations": [[1, 3, 5]],
        },
    }


def codecs(file: str) -> list[Component]:
    weights = {"vae": _video_weights, "audio_vae": _audio_weights, "vocoder": _vocoder_weights}
    return [Component(name, file, list(make())) for name, make in weights.items()]


def _latent_statistics() -> Iterator[Weight]:
    yield Listed("latents_mean", (LATENT,), 0.0)
    yield Listed("latents_std", (LATENT,), 1.0)


def _video_weights() -> Iterator[Weight]:
    kernel, width = (3, 3, 3), VIDEO_ENCODER[-1][0]
    yield from _latent_statistics()
    yield from affine("encoder.conv_in.conv", (VIDEO_ENCODER[0][0], 48, *kernel))
    for index, (channels, outputs) in enumerate(VIDEO_ENCODER):
        prefix = f"encoder.down_blocks.{index}"
        yield from _resnet(f"{prefix}.resnets.0", channels, kernel)
        yield from affine(f"{prefix}.downsamplers.0.conv.conv", (outputs, channels, *kernel))
    yield from _resnet("encoder.mid_block.resnets.0", width, kernel)
    yield from affine("encoder.conv_out.conv", (LATENT + 1, width, *kernel))
    yield from affine("decoder.conv_in.conv", (width, LATENT, *kernel))
    yield from _resnet("decoder.mid_block.resnets.0", width, kernel)
    for index, (inputs, outputs, channels) in enumerate(VIDEO_DECODER):
        prefix = f"decoder.up_blocks.{index}"
        yield from affine(f"{prefix}.upsamplers.0.conv.conv", (outputs, inputs, *kernel))
        yield from _resnet(f"{prefix}.resnets.0", channels, kernel)
    yield from affine("decoder.conv_out.conv", (48, VIDEO_DECODER[-1][2], *kernel))


def _audio_weights() -> Iterator[Weight]:
    kernel, width = (3, 3), AUDIO_WIDTH
    square, last = (width, width, *kernel), AUDIO_STAGES - 1
    yield from _latent_statistics()
    yield from affine("encoder.conv_in.conv", (width, 2, *kernel))
    yield from affine("encoder.conv_out.conv", (2 * AUDIO_LATENT, width, *kernel))
    yield from affine("decoder.conv_in.conv", (width, AUDIO_LATENT, *kernel))
    yield from affine("decoder.conv_out.conv", (2, width, *kernel))
    for half in ("encoder", "decoder"):
        for index in (1, 2):
            yield from _resnet(f"{half}.mid.block_{index}", width, kernel)
    for stage in range(AUDIO_STAGES):
        yield from _resnet(f"encoder.down.{stage}.block.0", width, kernel)
        for index in (0, 1):
            yield from _resnet(f"decoder.up.{stage}.block.{index}", width, kernel)
        if stage != last:
            yield from affine(f"encoder.down.{stage}.downsample.conv", square)
        if stage != 0:
            yield from affine(f"decoder.up.{stage}.upsample.conv.conv", square)


def _vocoder_weights() -> Iterator[Weight]:
    yield from affine("conv_in", (VOCODER_WIDTH, LATENT, 7))
    width = VOCODER_WIDTH
    for index, kernel in enumerate(VOCODER_KERNELS):
        # A transposed convolution stores its inputs first; its bias has one value per output.
        yield linear(f"upsamplers.{index}.weight", (width, width // 2, kernel))
        yield Listed(f"upsamplers.{index}.bias", (width // 2,), 0.0)
        width //= 2
        for layer in range(3):
            for name in ("convs1", "convs2"):
                yield from affine(f"resnets.{index}.{name}.{layer}", (width, width, 3))
    yield from affine("conv_out", (2, width, 7))


def _resnet(prefix: str, width: int, kernel: tuple[int, ...]) -> Iterator[Weight]:
    for index in (1, 2):
        yield from affine(f"{prefix}.conv{index}.conv", (width, width, *kernel), gain=1.6)
