"""The checker on incomplete trees, and its figures. Damaged trees are in tests/hostile."""

import json
import os
import shutil
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import command, require_one_line
from inference_kernels.check import blobs
from inference_kernels.check.state import Blobs
from inference_kernels.core import hashing
from inference_kernels.core.definitions import call_reference
from inference_kernels.core.errors import ReplayError
from inference_kernels.core.findings import Findings
from inference_kernels.core.layout import FOLDER_ENTRY_LIMIT, FOLDER_ENTRY_WARNING, POINTER_FIRST_LINE, BlobPath
from inference_kernels.core.native import native_data
from inference_kernels.core.tensors import tensor_file_header

OTHER = "toy_other"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """A dataset of two definitions with the same snapshots, all in the LFS store."""
    folder = tmp_path_factory.mktemp("two")
    root = toy.toy_root(folder / "root")
    toy.add_definition(root, OTHER)
    toy.captured_run(folder / "run", root, names=(toy.NAME, OTHER))
    toy.import_run(folder / "run", root, "workloads")
    return root


@pytest.fixture
def root(dataset, tmp_path) -> Path:
    shutil.copytree(dataset, tmp_path / "root")
    return tmp_path / "root"


def check(root: Path, *options: object):
    result = command("check_workload_inputs.py", "--root", root, *options)
    assert result.err == ""
    return result


def test_an_empty_name_is_not_a_definition(dataset):
    result = command("check_workload_inputs.py", "--root", dataset, "--definition", "")
    require_one_line(result, "check the definition's name")


def test_a_reference_that_leaves_the_process_is_an_error():
    definition = {"name": "leaves", "reference": "def run():\n    raise SystemExit(0)\n", "inputs": {}, "outputs": {}}
    with pytest.raises(ReplayError, match="found SystemExit: 0"):
        call_reference(definition, {})


def blob_paths(root: Path, definition: str) -> list[Path]:
    return sorted((root / "blob" / "workloads" / definition).iterdir())


def make_pointer(path: Path, size: int = 1000) -> None:
    path.write_bytes(POINTER_FIRST_LINE + f"\noid sha256:{path.stem}\nsize {size}\n".encode())


def test_figures_of_a_sound_tree(dataset):
    result = check(dataset)
    assert (result.code, result.findings) == (0, [])
    figures = result.summary["blobs"]
    assert (result.summary["checked"], figures["paths"], figures["pointers"]) == (4, 18, 0)


def test_one_content_under_two_definitions_counts_once(dataset):
    figures = check(dataset).summary["blobs"]
    assert (figures["paths"], figures["unique"]) == (18, 9) and figures["bytes"] == 2 * figures["unique_bytes"]


def test_a_changed_copy_is_an_error(root):
    path = blob_paths(root, OTHER)[0]
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    (line,) = check(root).errors()
    assert line.startswith(f"error blob/workloads/{OTHER}/") and "content of the hash" in line


def test_pointers_empty_and_truncated_files_side_by_side(root):
    """In a clone without LFS, pointers are told apart from broken files, and the finding says how to fetch them."""
    files = blob_paths(root, toy.NAME)
    for path in files[:2]:
        make_pointer(path)
    os.truncate(files[2], 0)
    os.truncate(files[3], 20)
    result = check(root, "--definition", toy.NAME)
    assert [line for line in result.findings if line.startswith("note ")] == [
        f"note {toy.NAME}: expected tensor bytes; found 2 of 9 not fetched: Git LFS pointers to 2,000 bytes; "
        f"git lfs pull --include 'blob/workloads/{toy.NAME}/**'"
    ]
    empty, truncated = result.errors() if "empty" in result.errors()[0] else reversed(result.errors())
    assert "an empty file" in empty and "a truncated file of 20 bytes" in truncated
    assert (result.code, result.summary["blobs"]["pointers"]) == (1, 2)


def test_a_clone_without_lfs_is_no_error(root):
    for path in blob_paths(root, toy.NAME) + blob_paths(root, OTHER):
        make_pointer(path)
    result = check(root)
    assert result.code == 0 and result.summary["errors"] == 0 and result.summary["notes"] == 2
    assert "8 of 9 not fetched: Git LFS pointers to 8,000 bytes" in result.findings[0]


def test_one_definition_is_checked_fully_while_the_other_is_not_fetched(root):
    for path in blob_paths(root, OTHER):
        make_pointer(path)
    result = check(root, "--definition", toy.NAME)
    assert result.code == 0 and (result.summary["checked"], result.summary["blobs"]["paths"]) == (2, 9)
    (line,) = result.findings
    assert line.startswith(f"note {OTHER}: ") and "8 not fetched" in line and f"workloads/{OTHER}/**" in line


def test_damage_outside_the_selection_is_left_alone(root):
    blob_paths(root, OTHER)[0].write_bytes(POINTER_FIRST_LINE + b"\nbroken")
    (root / "workloads" / "toy" / f"{OTHER}.jsonl").write_text("broken")
    assert check(root, "--definition", toy.NAME).code == 0
    assert check(root, "--definition", OTHER).code == 1


def test_a_broken_definition_is_reported_even_if_it_is_the_selected_one(root):
    (root / "definitions" / "toy" / f"{OTHER}.json").write_text("{")
    result = check(root, "--definition", OTHER)
    assert result.code == 1 and f"error definitions/toy/{OTHER}.json: expected valid JSON" in result.out


def test_a_definition_without_workloads_is_a_note(root):
    toy.add_definition(root, "toy_third")
    result = check(root)
    assert result.code == 0
    assert result.findings == ["note toy_third: expected captured workloads; found none; capture and import them"]


def test_a_moved_blob_is_one_missing_file_and_one_that_nothing_names(root):
    path = blob_paths(root, toy.NAME)[0]
    (root / "blob" / "starter" / toy.NAME).mkdir(parents=True)
    path.rename(root / "blob" / "starter" / toy.NAME / path.name)
    result = check(root)
    unreferenced, missing = sorted(result.errors())
    assert f"at blob/workloads/{toy.NAME}/{path.name}; found no such file" in missing
    assert unreferenced.startswith(f"error blob/starter/{toy.NAME}/{path.name}: ")
    assert "an unreferenced one" in unreferenced


def test_large_tensors_are_marked_by_arithmetic(tmp_path):
    """2^31 + 8 elements lie in a sparse file, of which only the header is read."""
    blob = BlobPath("workloads", "toy", "0" * 64)
    state = Blobs(), Findings()
    for elements, marked in ((2**31, 0), (2**31 + 8, 1)):
        path = tmp_path / f"{elements}.safetensors"
        path.write_bytes(tensor_file_header("int8", (elements,)))
        os.truncate(path, path.stat().st_size + elements)
        assert blobs._header(state[1], state[0], path, str(blob), blob)
        assert state[1].count("note") == marked
        path.unlink()
    assert "found 2,147,483,656 (large); use 64-bit offsets" in state[1].items[0].line()


def test_folders_with_too_many_entries_are_named(root, monkeypatch):
    assert (FOLDER_ENTRY_LIMIT, FOLDER_ENTRY_WARNING) == (10_000, 8_000), "the Hub's limit"
    monkeypatch.setattr(blobs, "FOLDER_ENTRY_LIMIT", 8)
    for warning, level in ((7, "warning"), (8, None)):
        monkeypatch.setattr(blobs, "FOLDER_ENTRY_WARNING", warning)
        lines = [line for line in check(root).findings if f"blob/workloads/{OTHER}: " in line]
        assert [line.split()[0] for line in lines] == ([level] if level else [])
    monkeypatch.setattr(blobs, "FOLDER_ENTRY_LIMIT", 7)
    monkeypatch.setattr(blobs, "FOLDER_ENTRY_WARNING", 5)
    assert f"error blob/workloads/{OTHER}: expected at most 7 entries per folder; found 8" in check(root).out


def test_the_starter_store_has_limits(root, monkeypatch):
    shutil.copytree(root / "blob" / "workloads", root / "blob" / "starter")
    monkeypatch.setattr(blobs, "STARTER_FILE_LIMIT", 150)
    monkeypatch.setattr(blobs, "STARTER_TOTAL_LIMIT", 1000)
    out = check(root).out
    assert "starter files of at most 150 bytes" in out
    assert "error blob/starter: expected at most 1,000 bytes" in out


def test_a_file_that_cannot_be_read_is_one_finding(root, monkeypatch):
    """Root may read everything, so the test fakes the refusal."""
    broken = blob_paths(root, toy.NAME)[0]
    original = hashing.sha256_file

    def refuse(path: Path) -> str:
        if path == broken:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(hashing, "sha256_file", refuse)
    (line,) = check(root).errors()
    assert "expected a readable file; found Permission denied" in line and broken.name in line


def test_the_report_holds_the_summary_and_every_finding(root, tmp_path):
    blob_paths(root, toy.NAME)[0].unlink()
    result = check(root, "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    findings = report.pop("findings")
    assert report == result.summary and len(findings) == len(result.findings) == 1
    assert set(findings[0]) == {"level", "where", "expected", "found", "remedy"}


def test_the_number_of_jobs_changes_nothing(root):
    blob_paths(root, toy.NAME)[0].write_bytes(b"x")
    outs = {check(root, "--jobs", jobs).out for jobs in (0, 1, 7)}
    assert len(outs) == 1


def test_a_relative_root_gives_the_same_findings(root, monkeypatch):
    blob_paths(root, toy.NAME)[0].unlink()
    absolute = check(root).out
    monkeypatch.chdir(root)
    assert check(Path(".")).out == absolute
    monkeypatch.chdir(root.parent)
    assert check(Path("root")).out == absolute


def test_the_native_loader_takes_the_tree_and_sees_every_workload(dataset):
    traces = native_data().TraceSet.from_path(str(dataset))
    assert sorted(traces.definitions) == sorted([toy.NAME, OTHER])
    assert {name: len(found) for name, found in traces.workloads.items()} == {toy.NAME: 2, OTHER: 2}
    definition = traces.definitions[toy.NAME]
    assert definition.get_input_shapes({"N": 3})[0] in ([3, 8], (3, 8))
