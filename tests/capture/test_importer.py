"""Importing: the same capture gives the same workload, whatever is there already."""

import shutil
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import command, require_one_line
from inference_kernels.capture import importer
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.layout import blob_files
from inference_kernels.core.records import read_captures, read_workloads
from inference_kernels.core.tensors import load_tensor

OTHER = "toy_other"


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> Path:
    """A folder with an empty dataset of two definitions, and runs `a` (3, 5 rows) and `b` (5, 7 rows)."""
    folder = tmp_path_factory.mktemp("captured")
    root = toy.toy_root(folder / "root")
    toy.add_definition(root, OTHER)
    toy.captured_run(folder / "a", root, rows=(3, 5))
    toy.captured_run(folder / "b", root, rows=(5, 7))
    return folder


@pytest.fixture
def root(captured, tmp_path) -> Path:
    shutil.copytree(captured / "root", tmp_path / "root")
    return tmp_path / "root"


def workloads(root: Path) -> dict[str, dict]:
    return {item["uuid"]: item for item in read_workloads(root, load_definition(root, toy.NAME))}


def sound(root: Path) -> None:
    result = command("check_workload_inputs.py", "--root", root, "--definition", toy.NAME)
    assert (result.code, result.findings) == (0, [])


def test_an_import_gives_the_same_bytes_on_every_root(captured, root, tmp_path):
    shutil.copytree(root, tmp_path / "second")
    for place in (root, tmp_path / "second"):
        assert toy.import_run(captured / "a", place) == 2
    assert toy.tree_bytes(root) == toy.tree_bytes(tmp_path / "second")


def test_records_and_workloads_agree_and_tensors_survive(captured, root):
    toy.import_run(captured / "a", root)
    records, found = read_captures(root), workloads(root)
    assert sorted(found) == sorted(record["workload"] for record in records)
    for record in records:
        rows = found[record["workload"]]["axes"]["N"]
        inputs, outputs = toy.toy_call(rows)
        assert load_tensor(root / found[record["workload"]]["inputs"]["x"]["path"]).equal(inputs["x"])
        assert load_tensor(root / record["outputs"]["y"]["path"]).equal(outputs["y"])
        assert record["replay"]["passed"] and set(record["replay"]["errors"]) == {"y", "count"}
        assert record["replay"]["criterion"]["atol"] == 0.005
    sound(root)


def test_overlapping_runs_add_up_in_any_order(captured, root, tmp_path):
    shutil.copytree(root, tmp_path / "second")
    assert [toy.import_run(captured / name, root) for name in ("a", "b")] == [2, 1]
    assert [toy.import_run(captured / name, tmp_path / "second") for name in ("b", "a")] == [2, 1]
    assert sorted(workloads(root)) == sorted(workloads(tmp_path / "second")) and len(workloads(root)) == 3
    sound(root)


def test_a_workload_keeps_its_store_when_it_is_imported_into_another(captured, root):
    toy.import_run(captured / "a", root, "workloads")
    before = toy.tree_bytes(root)
    assert toy.import_run(captured / "a", root, "starter") == 0
    assert toy.tree_bytes(root) == before
    assert toy.import_run(captured / "b", root, "starter") == 1
    stores = {path.relative_to(root).parts[1] for path in blob_files(root)}
    assert stores == {"workloads", "starter", "generated"}
    sound(root)


@pytest.mark.parametrize("damage", [None, b"", b"version https://"], ids=["deleted", "empty", "pointer"])
def test_importing_again_repairs_a_tensor(captured, root, damage):
    toy.import_run(captured / "a", root)
    whole = toy.tree_bytes(root)
    path = next(path for path in blob_files(root) if "starter" in path.parts)
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    toy.import_run(captured / "a", root)
    assert toy.tree_bytes(root) == whole


def test_seeded_weights_go_to_generated_and_the_rest_to_the_store(captured, root):
    toy.import_run(captured / "a", root, "workloads")
    places = {path.relative_to(root).parts[1]: 0 for path in blob_files(root)}
    for path in blob_files(root):
        places[path.relative_to(root).parts[1]] += 1
    assert places == {"workloads": 8, "generated": 1}


def test_leftovers_of_a_kill_are_cleared(captured, root):
    for place in (root, root / "blob" / "starter" / toy.NAME, root / "workloads" / "toy"):
        place.mkdir(parents=True, exist_ok=True)
        (place / ".tmp-killed").write_text("half")
    toy.import_run(captured / "a", root)
    assert not list(root.rglob(".tmp-*"))
    sound(root)


@pytest.mark.parametrize(
    "name,limit,words",
    [
        ("STARTER_FILE_LIMIT", 100, "starter tensors of at most 100 bytes"),
        ("STARTER_TOTAL_LIMIT", 500, "at most 500 bytes in blob/starter"),
    ],
)
def test_the_starter_store_has_limits(captured, root, monkeypatch, name, limit, words):
    before = toy.tree_bytes(root)
    monkeypatch.setattr(importer, name, limit)
    arguments = ("--import-capture", captured / "a", "--output-root", root)
    require_one_line(command("capture_inputs.py", *arguments, "--store", "starter"), words, "--store workloads")
    assert toy.tree_bytes(root) == before
    assert command("capture_inputs.py", *arguments, "--store", "workloads").code == 0


def test_a_root_without_the_definition_is_refused(captured, tmp_path):
    result = command("capture_inputs.py", "--import-capture", captured / "a", "--output-root", tmp_path)
    require_one_line(result, f"one of: none; found {toy.NAME}")
    assert list(tmp_path.iterdir()) == []


def test_broken_records_in_the_target_are_not_written_over(captured, root):
    (root / "captures.jsonl").write_text("{\n")
    before = toy.tree_bytes(root)
    result = command("capture_inputs.py", "--import-capture", captured / "a", "--output-root", root)
    require_one_line(result, "captures.jsonl:1: expected valid JSON")
    assert toy.tree_bytes(root) == before


def test_a_store_linked_out_of_the_root_is_refused(captured, root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "blob").mkdir()
    (root / "blob" / "starter").symlink_to(tmp_path / "elsewhere")
    result = command(
        "capture_inputs.py", "--import-capture", captured / "a", "--output-root", root, "--store", "starter"
    )
    require_one_line(result, "a path inside")
    assert list((tmp_path / "elsewhere").iterdir()) == [] and not (root / "captures.jsonl").exists()
