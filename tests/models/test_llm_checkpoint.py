"""Seeded checkpoints of language models: byte formats, shards of banks, files, resumption, weight lists."""

import hashlib
import math

import pytest
import torch
from safetensors import safe_open

from inference_kernels.models.deepseek.checkpoint import bank_recipe, deepseek_checkpoint
from inference_kernels.models.deepseek.config import EXPERT_WIDTH, HIDDEN
from inference_kernels.models.gdn.checkpoint import qwen3_next_checkpoint
from inference_kernels.models.qwen.checkpoint import decay_rates, qwen_next_checkpoint
from inference_kernels.seeded.checkpoint import CheckpointError, Component, Pipeline, read_recipes, write_checkpoint
from inference_kernels.seeded.materialize import recipe_digest
from inference_kernels.seeded.recipes import (
    ByteRecipe,
    RecipeError,
    byte_chunks,
    byte_table,
    e4m3_code,
    recipe_from_json,
    storage_chunks,
)
from inference_kernels.seeded.weights import Coded, Drawn, Listed, Rows, bfloat16_bytes, index_document


def content(recipe: ByteRecipe, *span: int) -> bytes:
    return b"".join(byte_chunks(recipe, *span))


def test_e4m3_codes_are_the_nearest_of_the_format():
    values = torch.tensor([(2 * u - 255) / 128 for u in range(256)])
    expected = values.to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert [e4m3_code(2 * u - 255) for u in range(256)] == expected


@pytest.mark.parametrize("low, levels", [(118, 3), (121, 1), (0, 200)])
def test_e8m0_exponents_are_spread_evenly(low, levels):
    table = byte_table(ByteRecipe(0, "s", (1,), "e8m0", low, levels))
    counts = torch.bincount(torch.tensor(table.tolist()), minlength=low + levels)[low:]
    assert counts.numel() == levels and counts.sum() == 256 and counts.max() - counts.min() <= 1


def test_the_stream_is_the_same_everywhere():
    recipe = ByteRecipe(0, "layers.1.ffn.experts.w13.weight", (64, 64), "e2m1x2")
    assert hashlib.sha256(content(recipe)).hexdigest() == (
        "d2fd6d857727b86bd94a4ac5e8d2a61f4ff8914b33a8c056c82bc2308abe7657"
    )
    scales = ByteRecipe(7, "x.scale", (4096,), "e8m0", 118, 3)
    assert hashlib.sha256(content(scales)).hexdigest() == (
        "dc2b0dbf7419c4f87c254557406cdbbe4c0be0292bc0571ea8a42effa11db3f9"
    )


@pytest.mark.parametrize("start, count", [(0, 1), (5, 40), (31, 2), (32, 64), (1000, 24), (1024, 0)])
def test_any_range_can_be_made_on_its_own(start, count):
    recipe = ByteRecipe(3, "bank", (4, 256), "e4m3")
    assert content(recipe, start, count) == content(recipe)[start : start + count]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "e5m2"},
        {"dtype": "uint8"},
        {"levels": 3},
        {"seed": -1},
        {"shape": [1, -1]},
        {"extra": 1},
        {"generator": "other"},
    ],
)
def test_recipes_that_break_a_rule_are_refused(change):
    value = ByteRecipe(0, "t", (2, 2), "e4m3").to_json()
    assert recipe_from_json(value) == ByteRecipe(0, "t", (2, 2), "e4m3")
    with pytest.raises(RecipeError):
        recipe_from_json(value | change)


def test_recipes_of_both_generators_are_told_apart():
    bfloat16 = Drawn("w", (4, 4), 0.02).recipe(0)
    assert recipe_from_json(bfloat16.to_json()) == bfloat16
    assert len(b"".join(storage_chunks(bfloat16))) == 32
    assert recipe_digest(ByteRecipe(0, "t", (8,), "e2m1x2")) != recipe_digest(ByteRecipe(1, "t", (8,), "e2m1x2"))


def test_expert_tensors_are_parts_of_their_bank():
    weights = {
        weight.name: weight
        for component in deepseek_checkpoint("deepseek41").components
        for weight in component.weights
    }
    rows = EXPERT_WIDTH * HIDDEN // 2
    for name, first in (("w1", 5 * 2 * rows), ("w3", 5 * 2 * rows + rows)):
        weight = weights[f"layers.1.ffn.experts.5.{name}.weight"]
        assert (weight.start, weight.nbytes) == (first, rows)
        assert weight.recipe(9) == bank_recipe(9, 1, "w13", False)
    scale = weights["layers.1.ffn.experts.383.w2.scale"]
    assert scale.start + scale.nbytes == bank_recipe(0, 1, "w2", True).nbytes
    small = Coded("e.1", (2, 8), "e4m3", bank="bank", bank_shape=(3, 2, 8), start=16)
    assert b"".join(small.chunks(4, "")) == content(ByteRecipe(4, "bank", (3, 2, 8), "e4m3"))[16:32]


def small_pipeline(seed_name: str = "w") -> Pipeline:
    components = [
        Component(
            "one",
            "model-one.safetensors",
            [
                Drawn(seed_name, (8, 16), 0.5),
                Drawn("f", (6,), 1.0, "float32"),
                Listed("ones", (5,), (1.0,)),
                Listed("rates", (2,), (0.25, -3.5), "float32"),
            ],
            flat=True,
        ),
        Component(
            "two",
            "model-two.safetensors",
            [
                Rows("conv", (Drawn("conv.a", (2, 1, 4), 0.1), Drawn("conv.b", (3, 1, 4), 3.0))),
                Coded("fp8", (4, 32), "e4m3"),
                Coded("scale", (4, 1), "e8m0", 121, 1),
                Coded("fp4", (4, 16), "e2m1x2", bank="bank", bank_shape=(2, 4, 16), start=64),
            ],
            flat=True,
        ),
    ]
    return Pipeline(
        "toy",
        "toy",
        "",
        "nothing",
        "everything",
        {"config.json": {"a": 1}, "model.safetensors.index.json": index_document(components)},
        components,
    )


def test_files_have_the_declared_formats(tmp_path):
    assert write_checkpoint(small_pipeline(), 0, tmp_path / "c", lambda line: None, jobs=2)
    found = {}
    for name in ("one", "two"):
        with safe_open(tmp_path / "c" / f"model-{name}.safetensors", framework="pt") as stream:
            found |= {key: stream.get_tensor(key) for key in list(stream.keys())}
    assert {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in found.items()} == {
        "w": (torch.bfloat16, (8, 16)),
        "f": (torch.float32, (6,)),
        "ones": (torch.bfloat16, (5,)),
        "rates": (torch.float32, (2,)),
        "conv": (torch.bfloat16, (5, 1, 4)),
        "fp8": (torch.float8_e4m3fn, (4, 32)),
        "scale": (torch.float8_e8m0fnu, (4, 1)),
        "fp4": (torch.int8, (4, 16)),
    }
    assert found["rates"].tolist() == [0.25, -3.5] and found["ones"].tolist() == [1.0] * 5
    assert found["conv"][2:].float().std() > 10 * found["conv"][:2].float().std()
    assert found["scale"].float().unique().tolist() == [2.0**-6]
    document, recipes = read_recipes(tmp_path / "c")
    assert set(recipes) == {"w", "f", "fp8", "scale"} and document["kind"] == "toy"


def test_a_killed_writer_is_completed_and_others_are_refused(tmp_path):
    folder, said = tmp_path / "c", []
    write_checkpoint(small_pipeline(), 0, folder, said.append)
    assert "in about" in said[0] and "free" in said[0]
    before = (folder / "model-two.safetensors").read_bytes()
    (folder / "model-two.safetensors").unlink()
    assert write_checkpoint(small_pipeline(), 0, folder, lambda line: None, jobs=2)
    assert (folder / "model-two.safetensors").read_bytes() == before
    assert not write_checkpoint(small_pipeline(), 0, folder, lambda line: None)
    with pytest.raises(CheckpointError, match="same seed"):
        write_checkpoint(small_pipeline(), 1, folder, lambda line: None)


@pytest.mark.parametrize(
    "build, gigabytes, config",
    [
        (
            deepseek_checkpoint,
            15.02,
            {
                "text_config.hidden_size": 5120,
                "text_config.n_routed_experts": 384,
                "text_config.head_dim": 512,
                "text_config.index_topk": 512,
            },
        ),
        (
            qwen_next_checkpoint,
            1.346,
            {
                "text_config.num_attention_heads": 24,
                "text_config.full_attention_interval": 4,
                "text_config.indexer_budget": 2048,
            },
        ),
        (qwen3_next_checkpoint, 0.5604, {"linear_num_key_heads": 4, "linear_num_value_heads": 8}),
    ],
)
def test_weight_lists(build, gigabytes, config):
    pipeline = build("toy")
    names = [weight.name for component in pipeline.components for weight in component.weights]
    assert len(names) == len(set(names))
    assert pipeline.weight_bytes() / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert all(component.nbytes < 2e9 for component in pipeline.components), "files are written in parallel"
    for path, value in config.items():
        found = pipeline.documents["config.json"]
        for key in path.split("."):
            found = found[key]
        assert found == value
    assert set(pipeline.documents["model.safetensors.index.json"]["weight_map"]) == set(names)


@pytest.mark.parametrize("heads", [8, 48])
def test_decay_rates_are_those_of_trained_models(heads):
    rates, biases = (torch.tensor(values) for values in decay_rates(heads))
    assert all(bfloat16_bytes(bias) for bias in biases.tolist())
    decay = torch.exp(-rates.exp() * torch.nn.functional.softplus(biases))
    assert 0.2 < decay.min() < 0.8 and 0.99 < decay.max() < 1


def test_values_that_bfloat16_does_not_hold_are_refused():
    with pytest.raises(ValueError):
        bfloat16_bytes(math.pi)
