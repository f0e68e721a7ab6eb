"""The recorder: values as they were when it was called, and nothing that is not the definition's."""

import json
import math

import pytest
import torch

from helpers import toy
from inference_kernels.capture.recorder import RUN_VARIABLE, Recorder
from inference_kernels.capture.run import RunFolder
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import read_json
from inference_kernels.core.records import statistics
from inference_kernels.core.tensors import load_tensor
from inference_kernels.seeded.materialize import recipe_digest
from inference_kernels.seeded.recipes import Recipe


@pytest.fixture
def root(tmp_path):
    return toy.toy_root(tmp_path / "root")


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = toy.start_run(tmp_path / "run")
    run.begin_case("case", {"prompt": "p"})
    return run


def record(run: RunFolder, root, inputs: dict, outputs: dict, **more) -> dict:
    """Record one call and return its file's content."""
    settings = {"operation": toy.OPERATION, "adaptations": []} | more
    uuid = Recorder(run.root, root).record(toy.NAME, inputs, outputs, **settings)
    return read_json(run.root / "calls" / f"{uuid}.json")


def stored(run: RunFolder, item: dict) -> torch.Tensor:
    return load_tensor(run.root / item["path"])


def test_a_call_is_stored_whole(run, root):
    inputs, outputs = toy.toy_call(3)
    call = record(
        run,
        root,
        inputs,
        outputs,
        adaptations=["padding stripped"],
        auxiliary={"scores": torch.arange(4, dtype=torch.int8)},
        generated={"weight": toy.RECIPE.to_json()},
    )
    workload, entry = call["workload"], call["record"]
    assert workload["axes"] == {"N": 3} and entry["workload"] == workload["uuid"]
    assert workload["inputs"]["scale"] == {"type": "scalar", "value": 0.5}
    for name in ("x", "weight", "ids"):
        assert torch.equal(stored(run, workload["inputs"][name]), inputs[name])
    assert torch.equal(stored(run, entry["outputs"]["y"]), outputs["y"])
    assert stored(run, entry["auxiliary"]["scores"]).tolist() == [0, 1, 2, 3]
    assert entry["request"] == {"case": "case", "prompt": "p"} and entry["adaptations"] == ["padding stripped"]
    assert Recipe.from_json(entry["generated"]["weight"]) == toy.RECIPE
    assert sorted(entry["statistics"]) == ["count", "ids", "weight", "x", "y"]


def test_buffers_may_be_reused_right_after_the_call(run, root):
    inputs, outputs = toy.toy_call(3)
    expected = {name: value.clone() for name, value in (inputs | outputs).items() if name != "scale"}
    call = record(run, root, inputs, outputs)
    for value in (inputs["x"], inputs["ids"], outputs["y"], outputs["count"]):
        value.zero_()
    for name, item in (call["workload"]["inputs"] | call["record"]["outputs"]).items():
        if name != "scale":
            assert torch.equal(stored(run, item), expected[name])


def test_the_same_inputs_are_stored_once(run, root):
    first, second = record(run, root, *toy.toy_call(3)), record(run, root, *toy.toy_call(3))
    assert first == second and len(run.calls()) == 1
    record(run, root, *toy.toy_call(4))
    assert len(run.calls()) == 2
    assert len(list((run.root / "blob").rglob("*.safetensors"))) == 9, "the weight of both calls is one file"


def test_the_first_outputs_of_equal_inputs_stay(run, root):
    """An engine that is not deterministic must not change a workload that is already there."""
    inputs, outputs = toy.toy_call(3)
    first = record(run, root, inputs, outputs)
    second = record(run, root, inputs, outputs | {"y": outputs["y"] + 1})
    assert second == first and torch.equal(stored(run, second["record"]["outputs"]["y"]), outputs["y"])


def test_strides_are_recorded_and_values_unchanged(run, root):
    inputs, outputs = toy.toy_call(3)
    views = inputs | {"x": inputs["x"].T.contiguous().T}
    transposed = record(run, root, views, outputs)
    assert transposed["record"]["adaptations"] == ["x: strides [1, 3] made contiguous, values unchanged"]
    assert torch.equal(stored(run, transposed["workload"]["inputs"]["x"]), inputs["x"])
    expanded = outputs | {"y": torch.ones(1, 1, dtype=torch.bfloat16).expand(3, 8)}
    other = record(run, root, inputs | {"scale": 0.25}, expanded)
    assert other["record"]["adaptations"] == ["y: strides [0, 0] made contiguous, values unchanged"]


def test_a_call_without_rows_is_kept_and_counted(run, root):
    recorder = Recorder(run.root, root)
    recorder.observe(toy.NAME)
    call = record(run, root, *toy.toy_call(0))
    assert call["workload"]["axes"] == {"N": 0} and stored(run, call["record"]["outputs"]["y"]).shape == (0, 8)
    assert call["record"]["statistics"]["y"] == {"min": None, "max": None, "zero_share": 0.0, "non_finite": 0}
    run.finish_case("case", [], 0)
    assert run.operator_counts() == {toy.NAME: 1}


def changed(group: str, name: str, value: object) -> tuple[dict, dict]:
    inputs, outputs = toy.toy_call(3)
    (inputs if group == "inputs" else outputs)[name] = value
    return inputs, outputs


@pytest.mark.parametrize(
    "group,name,value,words",
    [
        ("inputs", "x", torch.zeros(3, 9).bfloat16(), "axis K = 8|axis N"),
        ("inputs", "x", torch.zeros(24).bfloat16(), "input x with axes"),
        ("inputs", "x", torch.zeros(3, 8), "x \\(3, 8\\) bfloat16; found \\(3, 8\\) float32"),
        ("inputs", "ids", torch.zeros(3).long(), "found \\(3,\\) int64"),
        ("inputs", "ids", torch.zeros(4).int(), "axis N = 3; found 4"),
        ("inputs", "scale", torch.tensor(0.5), "scale None float32; found \\(\\)"),
        ("inputs", "x", 3.0, "input x with axes"),
        ("outputs", "y", torch.zeros(2, 8).bfloat16(), "found \\(2, 8\\)"),
        ("outputs", "count", torch.zeros(3), "count \\(3,\\) int32; found \\(3,\\) float32"),
        ("outputs", "y", 1.0, "found None"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(run, root, group, name, value, words):
    with pytest.raises(CaptureError, match=words) as caught:
        record(run, root, *changed(group, name, value))
    assert "correct the hook's mapping" in str(caught.value)
    assert run.calls() == [] and not (run.root / "blob").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs, outputs: inputs.pop("ids"),
        lambda inputs, outputs: inputs.update(bias=torch.zeros(1)),
        lambda inputs, outputs: outputs.pop("count"),
        lambda inputs, outputs: inputs.update(x=inputs.pop("x")),
        lambda inputs, outputs: outputs.update(z=outputs.pop("y")),
    ],
)
def test_other_names_or_another_order_are_refused(run, root, change):
    inputs, outputs = toy.toy_call(3)
    change(inputs, outputs)
    with pytest.raises(CaptureError, match="expected (in|out)puts \\[.*; found \\["):
        record(run, root, inputs, outputs)


@pytest.mark.parametrize("name", ["wieght", "scale", "y"])
def test_a_recipe_of_something_else_is_refused(run, root, name):
    with pytest.raises(CaptureError, match=f"recipes of tensor inputs; found {name}"):
        record(run, root, *toy.toy_call(3), generated={name: toy.RECIPE.to_json()})
    assert run.calls() == []


def test_calls_are_counted_by_case_and_only_inside_one(run, root):
    recorder = Recorder(run.root, root)
    for _ in range(3):
        recorder.observe("a")
    recorder.observe("b")
    run.finish_case("case", [], 0)
    recorder.observe("a")
    run.begin_case("second", {})
    recorder.observe("a")
    run.finish_case("second", [], 0)
    assert [case["counts"] for case in run.manifest["cases"].values()] == [{"a": 3, "b": 1}, {"a": 1}]


def test_an_error_in_a_hook_surfaces_in_the_launcher(run, root):
    recorder = Recorder(run.root, root)
    try:
        raise ValueError("no such weight")
    except ValueError as error:
        recorder.report_error("ToyLayer.forward", error)
    report = json.loads((run.root / "errors" / "0000.json").read_text())
    assert "Traceback" in report["traceback"] and "test_recorder" in report["traceback"]
    with pytest.raises(CaptureError, match="^ToyLayer.forward: .* found ValueError: no such weight"):
        run.finish_case("case", [], 0)


def test_an_operator_that_was_never_called_fails_the_run_by_name(run, root):
    record(run, root, *toy.toy_call(3))
    run.finish_case("case", [], 0)
    run.require_operators([toy.NAME])
    with pytest.raises(CaptureError, match=r"found none of toy_other \(0 calls seen\)"):
        run.require_operators([toy.NAME, "toy_other"])


def test_the_recorder_finds_its_run_in_the_environment(run, monkeypatch):
    monkeypatch.setenv(RUN_VARIABLE, str(run.root))
    assert Recorder.from_environment().run == run.root
    monkeypatch.delenv(RUN_VARIABLE)
    with pytest.raises(CaptureError, match="start the engine through the capture script"):
        Recorder.from_environment()


@pytest.mark.parametrize(
    "values,expected",
    [
        (torch.tensor([1.0, -2.0, 0.0, 0.0]), (-2.0, 1.0, 0.5, 0)),
        (torch.tensor([math.nan, math.inf, 3.0]), (3.0, 3.0, 0.0, 2)),
        (torch.tensor([math.nan]), (None, None, 0.0, 1)),
        (torch.tensor([True, False]), (False, True, 0.5, 0)),
        (torch.tensor([2**53 + 1, -5]), (-5, 2**53 + 1, 0.0, 0)),
        (torch.zeros(0), (None, None, 0.0, 0)),
        (torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn), (0.5, 448.0, 0.0, 0)),
        (torch.tensor(3.0).bfloat16(), (3.0, 3.0, 0.0, 0)),
    ],
)
def test_statistics(values, expected):
    found = statistics(values)
    assert (found["min"], found["max"], found["zero_share"], found["non_finite"]) == expected
    json.dumps(found, allow_nan=False)


def test_the_recipe_gives_the_file_that_was_captured(run, root):
    call = record(run, root, *toy.toy_call(3))
    digest = recipe_digest(toy.RECIPE)
    assert call["workload"]["inputs"]["weight"]["path"] == f"blob/{toy.NAME}/{digest}.safetensors"
