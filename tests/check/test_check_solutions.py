"""Checks of solutions in a tree: each mistake has its own finding."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import judge_toy, toy
from helpers.commands import command
from inference_kernels.core.definitions import definition_files
from inference_kernels.core.solutions import solution_files
from inference_kernels.core.tasks import read_task


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    root = toy.toy_dataset(tmp_path_factory.mktemp("solutions"))
    write(root, judge_toy.solution(judge_toy.HONEST, "toy_torch"))
    return root


@pytest.fixture
def root(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "root"))


def write(root: Path, solution: dict, name: str = "toy_torch", op_type: str = "toy") -> None:
    """Write the solution's JSON and, so that packing agrees, its sources beside it."""
    path = root / "solutions" / op_type / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    for item in solution["sources"]:
        source = path.with_suffix("") / item["path"]
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(item["content"])
    path.write_text(json.dumps(solution, indent=2, ensure_ascii=False) + "\n")


def changed(**spec) -> dict:
    solution = judge_toy.solution(judge_toy.HONEST, "toy_torch")
    solution["spec"] = {key: value for key, value in (solution["spec"] | spec).items() if value is not None}
    return solution


def test_a_sound_solution_is_no_finding(sound):
    result = command("check_workload_inputs.py", "--root", sound)
    assert result.code == 0 and result.errors() == []


@pytest.mark.parametrize(
    "solution, fragment",
    [
        (changed(destination_passing_style=None), "spec.destination_passing_style; found none: its default is true"),
        (changed(destination_passing_style=True), "parameters of run, as destination_passing_style true asks; found"),
        (changed(entry_point="gone.py::run"), "the entry file gone.py among the sources"),
        (changed(language="cute"), "spec.language"),
        (changed(dependency=["torch"]), "did you mean 'dependencies'?"),
        (changed() | {"definition": "other"}, "the solution of a known definition; found other"),
        (changed() | {"name": "elsewhere"}, "the file toy/elsewhere.json"),
        (changed() | {"sources": []}, "sources"),
    ],
)
def test_a_mistake_is_found_and_explained(root, solution, fragment):
    shutil.rmtree(root / "solutions")
    write(root, solution)
    result = command("check_workload_inputs.py", "--root", root)
    assert result.code == 1 and result.err == ""
    assert any("solutions/toy/toy_torch.json" in line and fragment in line for line in result.errors()), result.out


def test_two_solutions_of_one_name(root):
    write(root, changed(), name="copy")
    result = command("check_workload_inputs.py", "--root", root)
    assert any("a solution name that occurs once" in line for line in result.errors()), result.out


def test_every_definition_has_the_solutions_that_the_readme_promises(repository):
    names = {path.stem for path in solution_files(repository)}
    for path in definition_files(repository):
        task = read_task(repository, path.stem)
        assert {f"triton_{path.stem}", f"torch_{path.stem}", task.baseline} <= names, path.stem
