"""A capture run on disk: only what its manifest lists belongs to it."""

import json
from pathlib import Path

import pytest

from inference_kernels.capture.run import RunFolder, files_below, read_manifest, unlisted_files
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import write_json

pytestmark = pytest.mark.no_torch


SETTINGS = {"kind": "toy", "class": "seeded", "sizes": [64, 64]}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder.open(tmp_path / "run", SETTINGS)


def put(run: RunFolder, name: str, value: object = None) -> Path:
    write_json(run.root / name, value)
    return run.root / name


def test_a_new_run_is_empty_and_incomplete(run):
    assert read_manifest(run.root) == run.manifest and run.manifest["complete"] is False
    assert run.settings == SETTINGS and run.finished_cases == [] and files_below(run.root) == []


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("do not delete")
    with pytest.raises(CaptureError, match="other files, such as thesis.txt; choose another --output-root"):
        RunFolder.open(tmp_path, SETTINGS)
    assert (tmp_path / "thesis.txt").exists()


def test_a_finished_case_is_listed_with_its_counts(run):
    run.begin_case("one", {"prompt": "p"})
    assert json.loads((run.root / "request.json").read_text()) == {"case": "one", "prompt": "p"}
    put(run, "blob/toy/x.safetensors")
    put(run, "counts/one.json", {"toy": 3})
    run.finish_case("one", ["one.png"], 1.23456)
    again = RunFolder.open(run.root, SETTINGS)
    assert again.manifest == run.manifest and again.finished_cases == ["one"]
    assert again.manifest["cases"]["one"] == {"images": ["one.png"], "seconds": 1.235, "counts": {"toy": 3}}
    assert sorted(again.manifest["files"]) == ["blob/toy/x.safetensors", "counts/one.json"]
    assert again.operator_counts() == {"toy": 3}


def test_what_a_killed_case_left_goes_when_the_run_is_resumed(run):
    kept = put(run, "calls/kept.json")
    run.finish_case("one", [], 0)
    run.begin_case("two", {})
    left = [
        put(run, "calls/left.json"),
        put(run, "errors/0000.json", {}),
        put(run, "blob/toy/left.safetensors"),
        put(run, ".tmp-left"),
    ]
    resumed = RunFolder.open(run.root, SETTINGS)
    assert kept.exists() and not any(path.exists() for path in left) and not (run.root / "request.json").exists()
    assert unlisted_files(run.root, resumed.manifest) == []


@pytest.mark.parametrize(
    "other,key", [({"sizes": [64, 32]}, "sizes"), ({"kind": "image"}, "kind"), ({"seed": 1}, "seed")]
)
def test_other_settings_do_not_resume(run, other, key):
    with pytest.raises(
        CaptureError, match=f"the settings of the run that is resumed \\({key}: .*; use the same command"
    ):
        RunFolder.open(run.root, SETTINGS | other)


def test_settings_are_compared_by_value(run):
    assert RunFolder.open(run.root, {**SETTINGS, "sizes": (64, 64)}).settings == SETTINGS


def test_the_first_hook_error_fails_the_case(run):
    run.begin_case("one", {})
    put(run, "errors/0001.json", {"where": "second", "message": "later", "traceback": ""})
    put(run, "errors/0000.json", {"where": "Layer.forward", "message": "ValueError: no weight", "traceback": ""})
    with pytest.raises(CaptureError, match="^Layer.forward: .*; found ValueError: no weight; see .*0000"):
        run.finish_case("one", [], 0)
    assert RunFolder.open(run.root, SETTINGS).finished_cases == []


def test_an_operator_that_was_never_captured_is_named(run):
    put(run, "calls/a.json", {"record": {"definition": "gemm"}})
    put(run, "counts/one.json", {"gemm": 2, "attention": 9})
    run.finish_case("one", [], 0)
    run.require_operators(["gemm"])
    with pytest.raises(CaptureError, match=r"none of attention \(9 calls seen\), router \(0 calls seen\)"):
        run.require_operators(["gemm", "attention", "router"])


def test_counts_add_up_over_cases(run):
    for case, counts in (("one", {"a": 1, "b": 2}), ("two", {"b": 3})):
        put(run, f"counts/{case}.json", counts)
        run.finish_case(case, [], 0)
    assert run.operator_counts() == {"a": 1, "b": 5}


def test_a_complete_run_is_opened_but_takes_no_more_cases(run):
    put(run, "validation/a.json")
    run.complete()
    assert "validation/a.json" in run.manifest["files"]
    opened = RunFolder.open(run.root, SETTINGS)
    assert opened.manifest["complete"]
    with pytest.raises(CaptureError, match="a run that is not complete; found a new case two"):
        opened.begin_case("two", {})


@pytest.mark.parametrize(
    "manifest,words",
    [
        ({"version": 2}, "version 1"),
        ({"format": "x"}, "capture run, version 1"),
        ({"files": None, "cases": None}, "the keys"),
    ],
)
def test_other_manifests_are_refused(run, manifest, words):
    value = {key: item for key, item in (run.manifest | manifest).items() if item is not None}
    write_json(run.root / "manifest.json", value)
    with pytest.raises(CaptureError, match=words):
        RunFolder.open(run.root, SETTINGS)
