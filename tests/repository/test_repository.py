"""This repository's own tree: definitions and tasks are sound, packed, and load natively."""

import json
from pathlib import Path

import pytest

from helpers.commands import SCRIPTS, command
from inference_kernels.core.definitions import definition_files, read_definition, var_axes
from inference_kernels.core.native import check_native, native_data
from inference_kernels.core.pack import out_of_sync
from inference_kernels.core.schema import definition_errors, native_errors, unknown_keys
from inference_kernels.core.tasks import read_task, task_errors

REPOSITORY = SCRIPTS.parent
LIVE = definition_files(REPOSITORY)
RETIRED = definition_files(REPOSITORY, "retired/definitions")


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("path", LIVE + RETIRED, ids=name)
def test_definitions_pass_the_native_schema_and_ours(path):
    definition = read_definition(path)
    assert unknown_keys("definition", definition, name(path)) == []
    check_native("definition", definition, name(path))
    assert [error.line() for error in definition_errors(definition, path, name(path))] == []
    assert list(definition)[-1] == "reference"


def test_exported_native_schemas_are_those_of_the_installed_models():
    assert command("export_native_schema.py", "--check").code == 0
    for path in LIVE + RETIRED:
        assert native_errors("definition", read_definition(path), name(path)) == []


@pytest.mark.parametrize("path", LIVE, ids=name)
def test_every_definition_has_a_task_with_the_tolerance_of_its_dtypes(path):
    definition = read_definition(path)
    task = read_task(REPOSITORY, path.stem)
    assert task_errors(task, definition, set(task.dev), "task") == []
    assert task.group_axis in var_axes(definition) and task.baseline.endswith(path.stem)
    allowed = {"bfloat16": [(0.005, 0.016), (0.01, 0.01)], "float32": [(2e-5, 1e-4), (0.01, 0.01)]}
    floating = [spec["dtype"] for spec in definition["outputs"].values() if "float" in spec["dtype"]]
    limits = [(task.tolerance.atol, task.tolerance.rtol) in allowed[dtype] for dtype in floating]
    assert any(limits) or not floating
    assert task.tolerance.required_matched_ratio in (None, 0.9999)


def test_the_counts_of_the_project():
    assert (len(LIVE), len(RETIRED)) == (21, 5)
    assert {path.stem for path in (REPOSITORY / "tasks").glob("*.json")} == {path.stem for path in LIVE}
    assert not {path.stem for path in LIVE} & {path.stem for path in RETIRED}


def test_every_reference_beside_a_definition_is_packed():
    """A `.py` without its JSON would be code that nobody runs."""
    for path in LIVE + RETIRED:
        assert path.with_suffix(".py").exists()
    for folder in ("definitions", "retired/definitions"):
        assert all(path.with_suffix(".json").exists() for path in (REPOSITORY / folder).glob("*/*.py"))
    assert [error.line() for error in out_of_sync(REPOSITORY)] == []


def test_no_evaluator_of_the_native_benchmark_is_chosen_by_a_name():
    """flashinfer-bench picks special evaluators by these words; none may apply to ours."""
    for path in LIVE:
        definition = read_definition(path)
        assert definition["op_type"] != "sampling"
        assert not any(
            word in path.stem for word in ("moe_fp8_block_scale", "dsa_topk_indexer", "dsa_sparse_attention_h16")
        )


def test_the_native_loader_takes_the_tree():
    traces = native_data().TraceSet.from_path(str(REPOSITORY))
    assert sorted(traces.definitions) == sorted(path.stem for path in LIVE)
    lines = [
        json.loads(line)
        for path in (REPOSITORY / "workloads").glob("*/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sum(len(found) for found in traces.workloads.values()) == len(lines)


def test_the_checker_finds_no_error_here():
    result = command("check_workload_inputs.py")
    assert (result.err, result.errors(), result.code) == ("", [], 0)
