"""The commands in processes of their own: exit codes, one clear line, never a traceback."""

import os
import shutil
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import command, process, require_one_line
from helpers.toy_tree import Tree


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return toy.toy_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture
def damaged(dataset, tmp_path) -> Path:
    shutil.copytree(dataset, tmp_path / "root")
    os.truncate(Tree(tmp_path / "root").input("x"), 20)
    return tmp_path / "root"


def test_check_without_a_writable_home(dataset, monkeypatch):
    """By default flashinfer-bench keeps its cache in the home folder; no folder can be made in /proc."""
    monkeypatch.delenv("FIB_CACHE_PATH", raising=False)
    result = process("check_workload_inputs.py", "--root", dataset, HOME="/proc", XDG_CACHE_HOME="/proc")
    assert (result.code, result.err, result.findings) == (0, "", []) and result.summary["checked"] == 2


def test_check_of_a_damaged_tree(damaged, tmp_path):
    result = process("check_workload_inputs.py", "--root", damaged, "--json", tmp_path / "new" / "report.json")
    assert (result.code, result.err) == (1, "") and len(result.errors()) == 1
    assert '"findings": [' in (tmp_path / "new" / "report.json").read_text()


def test_replay_of_a_damaged_tree(damaged):
    result = process("capture_inputs.py", "--replay-root", damaged)
    assert (result.code, result.err) == (1, "")
    assert result.summary == {"device": "cpu", "replayed": 1, "failed": 1, "skipped": 0}
    assert [line for line in result.findings if line.startswith("error ") and "a truncated file" in line]


def test_a_refused_import(dataset, tmp_path):
    shutil.copytree(dataset.parent / "run", tmp_path / "run")
    (tmp_path / "run" / "stray").write_text("")
    result = process("capture_inputs.py", "--import-capture", tmp_path / "run", "--output-root", dataset)
    require_one_line(result, "run/stray", "a stray file; remove it")


def test_flashinfer_bench_not_installed(dataset, tmp_path):
    (tmp_path / "flashinfer_bench.py").write_text("raise ImportError('no flashinfer-bench')")
    result = process("check_tasks.py", "--self-test", "--root", dataset, PYTHONPATH=str(tmp_path))
    require_one_line(result, "no flashinfer-bench", "make install", "flashinfer-bench==0.1.2")
    assert process("check_workload_inputs.py", "--root", dataset, PYTHONPATH=str(tmp_path)).code == 0


@pytest.mark.parametrize("script,option", [("capture_inputs.py", "--replay-root"), ("verify.py", "--root")])
def test_nothing_installed(dataset, script, option):
    require_one_line(
        process(script, option, dataset, before=("-S",)), "the Python package", "not installed", "make install"
    )


@pytest.mark.parametrize(
    "script,option",
    [
        ("check_workload_inputs.py", "--root"),
        ("pack.py", "--root"),
        ("verify.py", "--root"),
        ("materialize_seeded.py", "--root"),
        ("capture_inputs.py", "--replay-root"),
    ],
)
def test_a_folder_that_is_no_dataset(tmp_path, script, option):
    for folder in (tmp_path, tmp_path / "absent"):
        result = command(script, option, folder)
        require_one_line(result, str(folder), "dataset")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "script,option",
    [
        ("check_workload_inputs.py", "--root"),
        ("materialize_seeded.py", "--root"),
        ("capture_inputs.py", "--replay-root"),
    ],
)
def test_an_unknown_definition(dataset, script, option):
    require_one_line(command(script, option, dataset, "--definition", "nobody"), toy.NAME, "found nobody")


def test_a_run_that_is_not_there(dataset, tmp_path):
    for run in (tmp_path / "absent", dataset):
        result = command("capture_inputs.py", "--import-capture", run, "--output-root", dataset)
        require_one_line(result, f"{run}/manifest.json", "expected a file; found nothing", "check the path")


def test_an_unknown_device(dataset):
    for device in ("cuda:63", "abacus"):
        require_one_line(
            command("capture_inputs.py", "--replay-root", dataset, "--device", device),
            f"a device {device}",
            "use --device cpu",
        )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--import-capture"],
        ["--import-capture", "a", "--replay-root", "b"],
        ["--replay-root", "a", "--tolerance", "1"],
        ["--import-capture", "a", "--store", "x"],
    ],
)
def test_wrong_arguments(arguments):
    result = command("capture_inputs.py", *arguments)
    assert result.code == 2 and result.err.startswith("usage: ") and "error: " in result.err.splitlines()[-1]


def test_verify_does_the_whole_job(dataset, tmp_path):
    shutil.copytree(dataset, tmp_path / "root")
    shutil.rmtree(tmp_path / "root" / "blob" / "generated")
    result = command("verify.py", "--root", tmp_path / "root", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    assert [word for word in result.findings[1].split()][:4] == [toy.NAME, "seeded", "2", "2"]
    assert {key: result.summary[key] for key in ("checked", "replayed", "failed", "skipped")} == {
        "checked": 2,
        "replayed": 2,
        "failed": 0,
        "skipped": 0,
    }


def test_verify_of_a_damaged_tree(damaged):
    result = command("verify.py", "--root", damaged, "--device", "cpu")
    assert (result.code, result.err) == (1, "") and result.summary["failed"] == 2
    assert "a truncated file" in result.out
