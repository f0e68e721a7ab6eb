"""Seeded weights, deleted, damaged or refused: a file that is written has the hash of its name."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import command, require_one_line
from inference_kernels.core.files import write_jsonl
from inference_kernels.core.hashing import sha256_file
from inference_kernels.seeded.materialize import generated_files, materialize, recipe_digest


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return toy.toy_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture
def root(dataset, tmp_path) -> Path:
    shutil.copytree(dataset, tmp_path / "root")
    return tmp_path / "root"


def weight(root: Path) -> Path:
    return root / "blob" / "generated" / toy.NAME / f"{recipe_digest(toy.RECIPE)}.safetensors"


def edit_recipes(root: Path, change) -> None:
    records = [json.loads(line) for line in (root / "captures.jsonl").read_text().splitlines()]
    for record in records:
        change(record)
    write_jsonl(root / "captures.jsonl", records)


def test_deleted_and_written_again_is_identical(root):
    before = toy.tree_bytes(root)
    shutil.rmtree(root / "blob" / "generated")
    result = command("materialize_seeded.py", "--root", root)
    assert result.summary == {"written": 1, "present": 0, "skipped_by_size": 0, "bytes": 128}
    assert toy.tree_bytes(root) == before
    assert command("materialize_seeded.py", "--root", root).summary["written"] == 0


def test_what_a_killed_run_left_is_removed(root):
    weight(root).rename(weight(root).with_name(".tmp-killed"))
    assert command("materialize_seeded.py", "--root", root).summary["written"] == 1
    assert [path.name for path in weight(root).parent.iterdir()] == [weight(root).name]


def test_one_file_serves_every_workload_that_reads_it(root):
    (item,) = generated_files(root)
    assert item.recipe == toy.RECIPE and str(item.blob) == weight(root).relative_to(root).as_posix()
    assert weight(root).read_bytes() == toy.weight_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:-1] + b"\xff",
        lambda data: b"",
        lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    ],
)
def test_a_damaged_file_is_written_again(root, damage):
    weight(root).write_bytes(damage(toy.weight_file()))
    assert [new for _, new in materialize(root, generated_files(root))] == [True]
    assert weight(root).read_bytes() == toy.weight_file()


def test_a_wrong_recipe_is_refused_and_writes_nothing(root):
    edit_recipes(root, lambda record: record["generated"]["weight"].update(seed=8))
    weight(root).unlink()
    result = command("materialize_seeded.py", "--root", root)
    require_one_line(result, f"a tensor of hash {weight(root).stem}", "recipe of toy.weight", "restore captures.jsonl")
    assert list(weight(root).parent.iterdir()) == []


def test_a_wrong_recipe_leaves_what_is_there(root):
    edit_recipes(root, lambda record: record["generated"]["weight"].update(seed=8))
    weight(root).write_bytes(b"damaged")
    require_one_line(command("materialize_seeded.py", "--root", root), "recipe of toy.weight")
    assert weight(root).read_bytes() == b"damaged"


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda recipe: recipe.update(generator="torch.randn"), "torch.randn"),
        (lambda recipe: recipe.update(dtype="int8"), "int8"),
        (lambda recipe: recipe.update(shape=[-1, 8]), "a shape"),
        (lambda recipe: recipe.update(extra=1), "the keys"),
        (lambda recipe: recipe.pop("shift"), "the keys"),
        (lambda recipe: recipe.update(seed="7"), "a seed"),
        (lambda recipe: recipe.update(multiplier=65), "a multiplier"),
        (lambda recipe: recipe.update(seed=True), "a seed"),
    ],
)
def test_impossible_recipes_are_refused_in_one_line(root, change, words):
    edit_recipes(root, lambda record: change(record["generated"]["weight"]))
    require_one_line(command("materialize_seeded.py", "--root", root), words)


def test_a_recipe_of_an_unknown_input_is_refused(root):
    edit_recipes(root, lambda record: record.update(generated={"bias": record["generated"]["weight"]}))
    require_one_line(command("materialize_seeded.py", "--root", root), "recipes of the inputs", "found bias")


def test_large_tensors_are_written_on_request_only(root, monkeypatch):
    monkeypatch.setattr("inference_kernels.seeded.materialize.SIZE_LIMIT", 127)
    weight(root).unlink()
    result = command("materialize_seeded.py", "--root", root)
    assert result.summary == {"written": 0, "present": 0, "skipped_by_size": 1, "bytes": 0}
    assert not weight(root).exists()
    assert command("materialize_seeded.py", "--root", root, "--all").summary["written"] == 1


def test_only_what_one_definition_reads(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    toy.add_definition(root, "toy_other")
    toy.captured_run(tmp_path / "run", root, names=(toy.NAME, "toy_other"))
    toy.import_run(tmp_path / "run", root)
    shutil.rmtree(root / "blob" / "generated")
    assert command("materialize_seeded.py", "--root", root, "--definition", "toy_other").summary["written"] == 1
    assert not weight(root).exists()
    assert sha256_file(root / "blob" / "generated" / "toy_other" / weight(root).name) == weight(root).stem


def test_a_link_out_of_the_root_is_not_followed(root):
    shutil.rmtree(root / "blob" / "generated")
    (root.parent / "elsewhere").mkdir()
    (root / "blob" / "generated").symlink_to(root.parent / "elsewhere")
    require_one_line(command("materialize_seeded.py", "--root", root), "a path inside")
    assert list((root.parent / "elsewhere").iterdir()) == []
