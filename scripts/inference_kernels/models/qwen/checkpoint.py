"""A checkpoint of the shape of Qwen 3.8 Flash-Next; models/gdn shares its rules for one rank of Qwen3-Next.

True: every captured operator's dimensions, the layer kinds and their order, all tensor names. Truncated:
layers, experts, vocabulary, n-gram tables. Tensor names are those SGLang 0.5.23 loads. Standard library only.
"""

import math
from collections.abc import Iterator

from inference_kernels.models.qwen.config import (
    EXPERT_WIDTH,
    EXPERTS,
    HIDDEN,
    HYPER,
    LAYERS,
    LOW_RANK,
    MIXED,
    NGRAM_PARTS,
    NGRAM_ROWS,
    STD,
    VALUE_HEADS,
    VOCABULARY,
    qwen_next_config,
)
from inference_kernels.seeded.checkpoint import Component, Pipeline
from inference_kernels.seeded.weights import Drawn, Listed, Weight, index_document, rounded

# Convolution weights: queries and keys are normalised afterwards; the values' decide how far states and outputs
# lie above the comparison's absolute tolerance of 0.01. With 1.0 the engine's prefill uses 82 to 99 % of the states'
# tolerance on an H200; with 0.45 about half, and six of ten elements of a state still exceed 0.01, so zeros fail.
QK_CONV_STD, VALUE_CONV_STD = 0.3, 0.45
RULE = (
    "linear weights with a standard deviation of 0.02, embeddings 1, convolutions 0.3 (values of "
    "Qwen3-Next 0.45), norms constant, A_log = log of a spread over 1..16, dt_bias = log(expm1) of a log "
    "spread over 0.001..0.1"
)


def qwen_next_checkpoint(kind: str) -> Pipeline:
    """Return Qwen 3.8 Flash-Next: three gated-delta layers, then one of sparse attention."""
    parts = [("globals", list(_next_globals()))]
    for layer in range(LAYERS):
        weights = [*_hyper_connections(layer), *_mixer(layer), *_experts(layer)]
        parts.append((f"layer{layer}", weights))
    parts.append(("ngrams", list(_ngrams())))
    return language_pipeline(
        kind,
        "Qwen3.8-Flash-Next-shaped, 4 layers",
        parts,
        qwen_next_config(),
        "hidden size 2560, 24 query and 2 key heads of 256, 4 index heads of 128, top 512 blocks of 4, "
        "16 / 48 linear heads, 4 hyper-connections",
        "4 layers instead of 48, 8 experts instead of 512 (2 a token), vocabulary 32768, n-gram tables of "
        "66,816 rows, no vision weights",
    )


def language_pipeline(kind: str, title: str, parts: list, config: dict, true_parts: str, truncated: str) -> Pipeline:
    components = [Component(name, f"model-{name}.safetensors", weights, flat=True) for name, weights in parts]
    return Pipeline(
        kind=kind,
        title=title,
        path_must_contain="",
        true_parts=true_parts,
        truncated_parts=truncated,
        components=components,
        rule=RULE,
        documents={"config.json": config, "model.safetensors.index.json": index_document(components)},
    )


def decay_rates(heads: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return A_log and dt_bias of a layer, for per-token decays of about 0.3 to 0.998, as trained models have."""
    spread = [(head + 0.5) / heads for head in range(heads)]
    # 5 has no common factor with 8 or 48 heads, so every part occurs once.
    shuffled = [spread[(head * 5 + 2) % heads] for head in range(heads)]
    rates = tuple(rounded(math.log(1 + 15 * part), 2**-10) for part in spread)
    steps = (math.exp(math.log(1e-3) + part * math.log(100)) for part in shuffled)
    return rates, tuple(rounded(math.log(math.expm1(step)), 2**-5) for step in steps)


def decay_weights(prefix: str, heads: int) -> Iterator[Listed]:
    rates, biases = decay_rates(heads)
    yield Listed(f"{prefix}.A_log", (heads,), rates, "float32")
    yield Listed(f"{prefix}.dt_bias", (heads,), biases)


def _next_globals() -> Iterator[Weight]:
    prefix = "model.language_model"
    yield Drawn(f"{prefix}.embed_tokens.weight", (VOCABULARY, HIDDEN), 1.0)
    yield Drawn("lm_head.weight", (VOCABULARY, HIDDEN), STD)
    yield from _mix(f"{prefix}.hyper_connection_mixer")


def _mix(prefix: str) -> Iterator[Weight]:
    wide = HYPER * HIDDEN
    yield Listed(f"{prefix}.hc_norm.weight", (wide,), (0.0,))
    yield Drawn(f"{prefix}.input_mix_weight_down.weight", (LOW_RANK, wide), STD)
    yield Drawn(f"{prefix}.input_mix_weight_up.weight", (wide, LOW_RANK), STD)


def _hyper_connections(layer: int) -> Iterator[Weight]:
    for half in ("attn", "mlp"):
        prefix = f"model.language_model.layers.{layer}.{half}_hyper_connection"
        yield from _mix(prefix)
        yield Drawn(f"{prefix}.block_inject_weight.weight", (HYPER, HYPER * HIDDEN), STD)


def _mixer(layer: int) -> Iterator[Weight]:
    prefix = f"model.language_model.layers.{layer}"
    if layer < LAYERS - 1:
        linear, values = f"{prefix}.linear_attn", VALUE_HEADS * 128
        for name, rows in (
            ("in_proj_qkv", MIXED),
            ("in_proj_z", values),
            ("in_proj_b", VALUE_HEADS),
            ("in_proj_a", VALUE_HEADS),
        ):
            yield Drawn(f"{linear}.{name}.weight", (rows, HIDDEN), STD)
        yield Drawn(f"{linear}.conv1d.weight", (MIXED, 1, 4), QK_CONV_STD)
        yield from decay_weights(linear, VALUE_HEADS)
        yield Listed(f"{linear}.norm.weight", (128,), (1.0,))
        yield Drawn(f"{linear}.out_proj.weight", (HIDDEN, values), STD)
        return
    attention = f"{prefix}.self_attn"
    # Value heads get a standard deviation of 0.5: with larger ones the engine's prefill kernel, which rounds
    # its probabilities to BF16, leaves the tolerance in rows that see few keys.
    for name, rows, columns in (
        ("q_proj", 12288, HIDDEN),
        ("k_proj", 512, HIDDEN),
        ("v_proj", 512, HIDDEN),
        ("o_proj", HIDDEN, 6144),
        ("indexer.index_qk_proj", 640, HIDDEN),
    ):
        yield Drawn(f"{attention}.{name}.weight", (rows, columns), STD)
    for name, size in (("q_norm", 256), ("k_norm", 256), ("indexer.q_layernorm", 128), ("indexer.k_layernorm", 128)):
        yield Listed(f"{attention}.{name}.weight", (size,), (0.0,))


def _experts(layer: int) -> Iterator[Weight]:
    prefix, width = f"model.language_model.layers.{layer}.mlp", EXPERT_WIDTH
    for name, shape in (
        ("gate.weight", (EXPERTS, HIDDEN)),
        ("shared_expert_gate.weight", (1, HIDDEN)),
        ("experts.gate_up_proj", (EXPERTS, 2 * width, HIDDEN)),
        ("experts.down_proj", (EXPERTS, HIDDEN, width)),
        ("shared_expert.gate_proj.weight", (width, HIDDEN)),
        ("shared_expert.up_proj.weight", (width, HIDDEN)),
        ("shared_expert.down_proj.weight", (HIDDEN, width)),
    ):
        yield Drawn(f"{prefix}.{name}", shape, STD)


def _ngrams() -> Iterator[Weight]:
    prefix, wide = "model.language_model.layers.1.ple", HYPER * HIDDEN
    yield Drawn(f"{prefix}.key_proj.weight", (wide, HIDDEN), STD)
    yield Drawn(f"{prefix}.value_proj.weight", (HIDDEN, HIDDEN), STD)
    yield Drawn(f"{prefix}.conv1d.weight", (wide, 1, 4), STD)
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield Listed(f"{prefix}.{name}.weight", (wide,), (0.0,))
    for part in range(NGRAM_PARTS):
        yield Drawn(
            f"{prefix}.ple_embedding.ngram_embedding.shard_{part}.weight", (NGRAM_ROWS // NGRAM_PARTS, 160), STD
        )
