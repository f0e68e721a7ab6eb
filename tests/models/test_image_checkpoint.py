"""Writing seeded checkpoints: bytes, resumption, refusals; and the list of the image pipeline."""

import json
import math
from collections import namedtuple

import pytest
import torch
from safetensors.torch import load_file

from helpers.seeded_bytes import recipe_bytes
from inference_kernels.models.image.checkpoint import image_pipeline
from inference_kernels.models.image.documents import CHAT_TEMPLATE, tokenizer_document
from inference_kernels.seeded import checkpoint
from inference_kernels.seeded.checkpoint import (
    CARD_FILE,
    RECIPE_FILE,
    CheckpointError,
    Component,
    Pipeline,
    read_recipes,
    write_checkpoint,
)
from inference_kernels.seeded.weights import Drawn, Listed, linear


def pipeline(rows=5) -> Pipeline:
    return Pipeline(
        kind="toy",
        title="Toy",
        path_must_contain="toy",
        true_parts="names",
        truncated_parts="sizes",
        documents={"config.json": {"rows": rows}},
        texts={"a/note.txt": "text\n"},
        components=[
            Component("a", "a.safetensors", [linear("w", (rows, 16)), Listed("n", (4,), 1.5)]),
            Component("b", "b.safetensors", [linear("w", (3, 2, 2), gain=2.0)]),
        ],
    )


def write(folder, seed=0, rows=5) -> bool:
    return write_checkpoint(pipeline(rows), seed, folder, lambda line: None)


def test_weights_are_those_of_the_recipes(tmp_path):
    folder = tmp_path / "toy"
    assert write(folder)
    tensors = load_file(folder / "a" / "a.safetensors")
    document, recipes = read_recipes(folder)
    assert set(recipes) == {"a/w", "b/w"} and document["seed"] == 0
    bits = torch.frombuffer(bytearray(recipe_bytes(recipes["a/w"])), dtype=torch.bfloat16)
    assert torch.equal(tensors["w"].flatten(), bits) and tensors["n"].tolist() == [1.5] * 4
    assert recipes["b/w"].std() == pytest.approx(2 / math.sqrt(4), rel=0.016)
    assert "untrained" in (folder / CARD_FILE).read_text()


def test_a_second_call_writes_nothing(tmp_path):
    folder = tmp_path / "toy"
    write(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert not write(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_killed_run_is_completed_and_whole_files_are_kept(tmp_path):
    folder = tmp_path / "toy"
    write(folder)
    content = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    kept = (folder / "a" / "a.safetensors").stat().st_mtime_ns
    (folder / "b" / "b.safetensors").rename(folder / "b" / ".tmp-killed")
    (folder / RECIPE_FILE).unlink()
    assert write(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == content
    assert (folder / "a" / "a.safetensors").stat().st_mtime_ns == kept


@pytest.mark.parametrize("change", [{"seed": 1}, {"rows": 6}])
def test_weights_of_another_seed_or_shape_are_refused(tmp_path, change):
    write(tmp_path / "toy")
    with pytest.raises(CheckpointError, match="same seed, shape and generator"):
        write(tmp_path / "toy", **change)


def test_a_truncated_weight_file_is_refused(tmp_path):
    write(tmp_path / "toy")
    with open(tmp_path / "toy" / "a" / "a.safetensors", "r+b") as stream:
        stream.truncate(200)
    with pytest.raises(CheckpointError, match="a.safetensors"):
        write(tmp_path / "toy")


def test_a_foreign_folder_and_a_wrong_name_are_refused(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="thesis.txt"):
        write(folder)
    with pytest.raises(CheckpointError, match="contains 'toy'"):
        write(tmp_path / "other")


def test_a_full_disk_is_refused_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    with pytest.raises(CheckpointError, match="free disk space"):
        write(tmp_path / "toy")
    assert not list((tmp_path / "toy").rglob("*.safetensors"))


def test_the_image_pipeline_has_the_published_transformer_shapes():
    transformer = {weight.name: weight.shape for weight in image_pipeline("image", 2).components[0].weights}
    assert transformer["transformer_blocks.1.img_mlp.gate_layer.weight"] == (12288, 4096)
    assert transformer["transformer_blocks.0.attn.to_out.0.weight"] == (4096, 4096)
    assert transformer["modulation.1.weight"] == (16384, 4096)
    first = [math.prod(shape) for name, shape in transformer.items() if "transformer_blocks.0" in name]
    assert sum(first) == 4 * 4096**2 + 3 * 12288 * 4096 + 2 * 128
    assert not any("transformer_blocks.2" in name for name in transformer)


@pytest.mark.parametrize("component", [0, 1, 2])
def test_names_are_unique_and_recipes_exist(component):
    component = image_pipeline("image", 1).components[component]
    names = [weight.name for weight in component.weights]
    assert len(set(names)) == len(names)
    assert all(len(weight.shape) > 1 for weight in component.weights if isinstance(weight, Drawn))
    assert all(entry["tensor"].startswith(f"{component.name}/") for entry in component.entries(0))


def test_the_tokenizer_has_one_token_a_byte():
    document = tokenizer_document()
    vocabulary = document["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    # The letters that byte-level BPE files use for space, newline, DEL and the soft hyphen.
    assert [vocabulary[letter] for letter in "AĠĊġŃ"] == [65, 32, 10, 127, 173]
    assert [token["id"] for token in document["added_tokens"]] == list(range(256, 263))
    assert image_pipeline("image", 1).documents["processor/tokenizer_config.json"]["chat_template"] == CHAT_TEMPLATE


def test_documents_are_json_and_carry_the_turbo_schedule():
    documents = image_pipeline("image", 2).documents
    assert json.loads(json.dumps(documents)) == documents
    assert len(documents["model_index.json"]["sample_sigmas"]) == 8
    assert documents["scheduler/scheduler_config.json"]["use_dynamic_shifting"] is False
    assert documents["transformer/config.json"]["num_layers"] == 2
