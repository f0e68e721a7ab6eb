"""A checkpoint of the shape of DeepSeek V4.1 Flash with two layers: weight list, and what of it is true.

True: every operator's dimensions and every storage format (FP8 in 32x32 blocks with E8M0 scales, FP4 experts,
BF16, FP32). Truncated: layers, vocabulary, vision tower. Layer 0 attends to its window of 128, layer 1 also
to the 512 best of its compressed keys (ratio 2). Tensor names and configuration keys are those SGLang 0.5.23
loads. Standard library only.
"""

from collections.abc import Iterator

from inference_kernels.models.deepseek.config import (
    EXPERT_WIDTH,
    EXPERTS,
    EXPERTS_PER_FILE,
    HEADS,
    HIDDEN,
    LATENT,
    RATIOS,
    VISION_WIDTH,
    VOCABULARY,
    deepseek_config,
)
from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.recipes import BYTE_GENERATOR, GENERATOR, ByteRecipe
from inference_kernels.seeded.weights import Coded, Drawn, Listed, Weight, index_document

RULE = (
    "FP8 codes uniform in -2..2 with a constant block scale of 2**-6 (2**-5 for rows of 2304 or fewer), "
    "FP4 codes "
    "uniform with E8M0 scales of three exponents, BF16 and FP32 with a given standard deviation, norms "
    "constant"
)
TRUE_PARTS = (
    "hidden size 5120, 64 heads of 512, 384 experts of 2304 with 6 a token, window 128, index top "
    "512, "
    "4 hyper-connections, the number format of every tensor"
)
TRUNCATED_PARTS = (
    "2 layers instead of 40 (compression ratios 0 and 2), vocabulary 8192, a vision tower of "
    "width 64 "
    "that only makes the engine create the image bias, no Engram tables, no draft layers"
)
# Block scales that keep activations of order 1; FP8 codes have a standard deviation of 1.15.
WIDE, NARROW = 127 - 6, 127 - 5
EXPERT_SCALES = {"w13": 118, "w2": 119}


def deepseek_checkpoint(kind: str) -> Pipeline:
    """Return two layers, one without compressed keys and one of ratio 2; files hold 48 experts each."""
    components = [Component("globals", "model-globals.safetensors", list(_globals()), flat=True)]
    for layer, ratio in enumerate(RATIOS):
        components.append(
            Component(f"layer-{layer}", f"model-layer{layer}.safetensors", list(_layer(layer, ratio)), flat=True)
        )
        for first in range(0, EXPERTS, EXPERTS_PER_FILE):
            weights = [weight for expert in range(first, first + EXPERTS_PER_FILE) for weight in _expert(layer, expert)]
            name = f"layer{layer}-experts{first:03d}"
            components.append(Component(name, f"model-{name}.safetensors", weights, flat=True))
    return Pipeline(
        kind=kind,
        title="DeepSeek-V4.1-Flash-shaped, 2 layers",
        path_must_contain="",
        true_parts=TRUE_PARTS,
        truncated_parts=TRUNCATED_PARTS,
        components=components,
        rule=RULE,
        generator=f"{GENERATOR}, {BYTE_GENERATOR}",
        documents={"config.json": deepseek_config(), "model.safetensors.index.json": index_document(components)},
    )


def bank(layer: int, which: str, scale: bool) -> tuple[str, tuple[int, int, int], str, int, int]:
    """Return name, shape, format, low and levels of all experts' weights of a layer, as one tensor.

    which: "w13" (an expert's w1 rows, then its w3 rows) or "w2". scale: the E8M0 scales instead of the codes.
    """
    rows, columns = (2 * EXPERT_WIDTH, HIDDEN) if which == "w13" else (HIDDEN, EXPERT_WIDTH)
    name = f"layers.{layer}.ffn.experts.{which}"
    if scale:
        return f"{name}.scale", (EXPERTS, rows, columns // 32), "e8m0", EXPERT_SCALES[which], 3
    return f"{name}.weight", (EXPERTS, rows, columns // 2), "e2m1x2", 0, 0


def bank_recipe(seed: int, layer: int, which: str, scale: bool) -> ByteRecipe:
    """Return the recipe of a bank, for workloads whose input it is."""
    name, shape, form, low, levels = bank(layer, which, scale)
    return ByteRecipe(seed, name, shape, form, low, levels)


def _expert(layer: int, expert: int) -> Iterator[Coded]:
    prefix = f"layers.{layer}.ffn.experts.{expert}"
    for name, which, part in (("w1", "w13", 0), ("w3", "w13", 1), ("w2", "w2", 0)):
        for scale in (False, True):
            stream, shape, form, low, levels = bank(layer, which, scale)
            rows = EXPERT_WIDTH if which == "w13" else HIDDEN
            start = (expert * shape[1] + part * rows) * shape[2]
            yield Coded(
                f"{prefix}.{name}.{'scale' if scale else 'weight'}",
                (rows, shape[2]),
                form,
                low,
                levels,
                stream,
                shape,
                start,
            )


def _ones(name: str, *shape: int) -> Listed:
    return Listed(name, shape, (1.0,))


def _fp8(name: str, rows: int, columns: int) -> Iterator[Coded]:
    yield Coded(f"{name}.weight", (rows, columns), "e4m3")
    exponent = NARROW if columns <= EXPERT_WIDTH else WIDE
    yield Coded(f"{name}.scale", (rows // 32, columns // 32), "e8m0", exponent, 1)


def _globals() -> Iterator[Weight]:
    yield Drawn("embed.weight", (VOCABULARY, HIDDEN), 1.0)
    yield _ones("norm.weight", HIDDEN)
    yield Drawn("head.weight", (VOCABULARY, HIDDEN), 0.014)
    width, block = VISION_WIDTH, "vision.blocks.0"
    shapes = {
        "vision.patch_embed.proj.weight": (width, 588),
        "vision.patch_embed.proj.bias": (width,),
        f"{block}.attn.wqkv.weight": (3 * width, width),
        f"{block}.attn.wqkv.bias": (3 * width,),
        f"{block}.attn.wo.weight": (width, width),
        f"{block}.attn.wo.bias": (width,),
        f"{block}.mlp.w1.weight": (2 * width, width),
        f"{block}.mlp.w2.weight": (width, width),
        "aligner.w1.weight": (HIDDEN, 9 * width),
        "aligner.w1.bias": (HIDDEN,),
        "aligner.w2.weight": (HIDDEN, HIDDEN),
        "aligner.w2.bias": (HIDDEN,),
    }
    for name, shape in shapes.items():
        yield Drawn(name, shape, 0.02)
    for name in (f"{block}.norm1.weight", f"{block}.norm2.weight", "vision.norm.weight"):
        yield _ones(name, width)
    for name in ("image_start", "image_end", "image_newline"):
        yield Drawn(name, (HIDDEN,), 1.0)


def _layer(layer: int, ratio: int) -> Iterator[Weight]:
    prefix = f"layers.{layer}"
    for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn.q_norm", 1280), ("attn.kv_norm", LATENT)):
        yield _ones(f"{prefix}.{name}.weight", size)
    matrices = {
        "wq_a": (1280, HIDDEN),
        "wkv": (LATENT, HIDDEN),
        "wq_b": (HEADS * LATENT, 1280),
        "wo_a": (8192, 4096),
        "wo_b": (HIDDEN, 8192),
    }
    for name, (rows, columns) in matrices.items():
        yield from _fp8(f"{prefix}.attn.{name}", rows, columns)
    yield Drawn(f"{prefix}.attn.attn_sink", (HEADS,), 1.0, "float32")
    for half in ("attn", "ffn"):
        yield Drawn(f"{prefix}.hc_{half}_fn", (24, 4 * HIDDEN), 0.01, "float32")
        yield Listed(f"{prefix}.hc_{half}_base", (24,), (0.0,), "float32")
        yield Listed(f"{prefix}.hc_{half}_scale", (3,), (1.0,), "float32")
    yield Drawn(f"{prefix}.ffn.gate.weight", (EXPERTS, HIDDEN), 0.02)
    for name in ("bias", "bias_vl"):
        yield Drawn(f"{prefix}.ffn.gate.{name}", (EXPERTS,), 0.05, "float32")
    for name, rows, columns in (
        ("w1", EXPERT_WIDTH, HIDDEN),
        ("w3", EXPERT_WIDTH, HIDDEN),
        ("w2", HIDDEN, EXPERT_WIDTH),
    ):
        yield from _fp8(f"{prefix}.ffn.shared_experts.{name}", rows, columns)
    if ratio:
        yield from _compressor(f"{prefix}.attn")


def _compressor(prefix: str) -> Iterator[Weight]:
    """Yield the weights of the compressed keys of ratio 2 and their indexer."""
    for name in ("wkv", "wgate"):
        yield Drawn(f"{prefix}.compressor.{name}.weight", (LATENT, HIDDEN), 0.014)
    yield _ones(f"{prefix}.compressor.norm.weight", LATENT)
    yield from _fp8(f"{prefix}.indexer.wq_b", 4096, 1280)
    yield Drawn(f"{prefix}.indexer.weights_proj.weight", (32, HIDDEN), 0.014)
    yield Drawn(f"{prefix}.indexer.wk.weight", (128, LATENT), 0.044)
    yield _ones(f"{prefix}.indexer.k_norm.weight", 128)
