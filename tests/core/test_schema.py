"""Our own rules for definitions, workloads and records, on hand-made values."""

import copy
import json
from pathlib import Path

import pytest

from inference_kernels.core import schema, tasks
from inference_kernels.core.compare import Tolerance
from inference_kernels.core.definitions import (
    const_axes,
    infer_axes,
    load_definition,
    read_definition,
    require_dataset,
    resolve_shape,
    var_axes,
)
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.records import record_tensors, workload_line, workload_uuid

pytestmark = pytest.mark.no_torch


DATA = Path(__file__).parents[1] / "data" / "toy"
NAME = "toy_gather_scale"
PATH = DATA / "definitions" / "toy" / f"{NAME}.json"
HASHES = [character * 64 for character in "0123"]


@pytest.fixture
def definition() -> dict:
    return read_definition(PATH)


@pytest.fixture
def workload() -> dict:
    tensors = {
        name: {"type": "safetensors", "path": f"blob/starter/{NAME}/{digest}.safetensors", "tensor_key": "tensor"}
        for name, digest in zip(("x", "weight", "ids"), HASHES)
    }
    inputs = tensors | {"scale": {"type": "scalar", "value": 0.5}}
    return {"axes": {"N": 3}, "inputs": inputs, "uuid": workload_uuid(NAME, inputs)}


def found(errors: list) -> list[str]:
    return [error.found for error in errors]


def test_the_sound_values_have_no_errors(definition, workload):
    assert schema.unknown_keys("definition", definition, "here") == []
    assert schema.definition_errors(definition, PATH, "here") == []
    assert schema.workload_errors(workload, definition, "here") == []
    assert schema.workload_line_errors(workload_line(NAME, workload), definition, "here") == []


@pytest.mark.parametrize(
    "kind,value,key,near",
    [
        ("definition", {"name": "x", "tag": []}, "tag", "tags"),
        ("definition", {"axes": {"N": {"typ": "var"}}}, "axes.N.typ", "type"),
        ("definition", {"inputs": {"x": {"dtpe": ""}}}, "inputs.x.dtpe", "dtype"),
        ("definition", {"outputs": {"y": {"shapes": []}}}, "outputs.y.shapes", "shape"),
        ("trace", {"workloads": {}}, "workloads", "workload"),
        ("trace", {"workload": {"uid": ""}}, "workload.uid", "uuid"),
        ("trace", {"workload": {"inputs": {"x": {"pth": ""}}}}, "workload.inputs.x.pth", "path"),
        ("solution", {"spec": {"destination_passing": True}}, "spec.destination_passing", "destination_passing_style"),
        ("solution", {"sources": [{"path": "a"}, {"contents": ""}]}, "sources.1.contents", "content"),
    ],
)
def test_unknown_keys_are_named_with_the_likely_spelling(kind, value, key, near):
    (error,) = schema.unknown_keys(kind, value, "here")
    assert error.found == f"unknown key {key!r}" and error.remedy == f"did you mean {near!r}?"


def test_an_unlikely_key_is_to_be_removed():
    (error,) = schema.unknown_keys("definition", {"zzz": 1}, "here")
    assert error.remedy == "remove it"


def test_values_of_the_wrong_kind_have_no_keys():
    assert schema.unknown_keys("trace", {"workload": 5}, "here") == []
    assert schema.unknown_keys("definition", {"axes": [1, 2]}, "here") == []


@pytest.mark.parametrize("name", ["axes.N", "axes.K", "inputs.x", "inputs.scale", "outputs.count", ""])
@pytest.mark.parametrize("text", [None, "", " \n"])
def test_everything_needs_a_description(definition, name, text):
    item = definition
    for key in filter(None, name.split(".")):
        item = item[key]
    item["description"] = text
    (error,) = schema.definition_errors(definition, PATH, "here")
    assert error.expected == f"a description of {name or 'definition'}"


def test_a_definition_at_another_place(definition):
    for path in (PATH.with_stem("other"), PATH.parent.parent / "gemm" / PATH.name):
        (error,) = schema.definition_errors(definition, path, "here")
        assert error.expected == f"the file toy/{NAME}.json"


@pytest.mark.parametrize(
    "dtype,good,bad",
    [
        ("float32", [0.5, 1, -3], [True, "1", None, [1]]),
        ("int32", [0, -5], [0.5, True, "1", None]),
        ("bool", [True, False], [0, 1, None]),
    ],
)
def test_scalars_have_the_type_of_their_dtype(definition, workload, dtype, good, bad):
    definition["inputs"]["scale"]["dtype"] = dtype
    for value in good + bad:
        workload["inputs"]["scale"] = {"type": "scalar", "value": value}
        fits = any(value is item for item in good)
        assert found(schema.workload_errors(workload, definition, "here")) == ([] if fits else [repr(value)])


def test_every_fault_of_a_workload_is_listed(definition, workload):
    workload["axes"] = {"N": -1, "K": 8}
    workload["inputs"] = {
        "x": {"type": "random"},
        "weight": {},
        "idz": {"type": "scalar", "value": 1},
        "scale": {"type": "scalar"},
    }
    errors = schema.workload_errors(workload, definition, "here")
    assert found(errors) == ["none", "type 'random'", "type None", "input idz", "None", "['K', 'N']", "-1"]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"workload": None},
        {"workload": []},
        {"workload": {"uuid": 1, "axes": {}, "inputs": {}}},
        {"workload": {"uuid": "", "axes": [], "inputs": {}}},
        {"workload": {"uuid": "", "axes": {}}},
        {"workload": {"uuid": "", "axes": {}, "inputs": {"x": 1}}},
    ],
)
def test_lines_that_are_no_workloads(definition, row):
    for owner in (NAME, "other"):
        (error,) = schema.workload_line_errors({"definition": owner} | row, definition, "file:2")
        assert error.line().startswith(f"file:2: expected a workload of {NAME}: uuid, axes, inputs; ")


def test_a_workload_keeps_its_identity_between_stores(workload):
    moved = copy.deepcopy(workload["inputs"])
    for item in moved.values():
        if "path" in item:
            item["path"] = item["path"].replace("starter", "workloads")
    assert workload_uuid(NAME, dict(reversed(moved.items()))) == workload["uuid"]
    assert workload_uuid("other", moved) != workload["uuid"]
    moved["scale"]["value"] = 0.25
    assert workload_uuid(NAME, moved) != workload["uuid"]


def test_the_identity_never_changes(workload):
    """Every published workload depends on this value."""
    assert workload["uuid"] == "317517a1-7376-565f-b011-aa7e09405c66"


def test_shapes_and_axes(definition):
    assert const_axes(definition) == {"K": 8} and var_axes(definition) == ["N"]
    assert resolve_shape(definition["inputs"]["x"], {"N": 3, "K": 8}) == (3, 8)
    assert resolve_shape(definition["inputs"]["scale"], {}) is None
    shapes = {"x": (3, 8), "weight": (8, 8), "ids": (3,)}
    assert infer_axes(definition, shapes, "here") == {"N": 3}
    for name, shape, words in (
        ("ids", (4,), "axis N = 3; found 4 in the shape of input ids"),
        ("weight", (8, 9), "axis K = 8; found 9"),
        ("x", (3,), "input x with axes"),
    ):
        with pytest.raises(SchemaError, match=words):
            infer_axes(definition, shapes | {name: shape}, "here")


def test_unknown_definitions_and_folders(tmp_path):
    with pytest.raises(SchemaError, match=f"one of: {NAME}; found nobody"):
        load_definition(DATA, "nobody")
    with pytest.raises(SchemaError, match="one of: none"):
        load_definition(tmp_path, NAME)
    with pytest.raises(SchemaError, match="a dataset root with definitions/; found none"):
        require_dataset(tmp_path)


def test_tolerances_come_from_the_task_and_are_sane():
    task = tasks.read_task(DATA, NAME)
    assert task.tolerance == Tolerance(0.005, 0.016, None, "absolute_plus_relative") and task.timing["timed"] == "call"
    for bad in (
        {"atol": -1.0},
        {"rtol": float("nan")},
        {"atol": float("inf")},
        {"required_matched_ratio": 0.0},
        {"required_matched_ratio": 1.5},
        {"comparison": "loose"},
    ):
        with pytest.raises(SchemaError, match="tolerance: expected atol >= 0"):
            Tolerance(**({"atol": 0.1, "rtol": 0.1} | bad))


def test_our_schemas_are_closed_and_described():
    own = [path for path in sorted(schema.SCHEMAS.glob("*.json")) if not path.name.startswith("native_")]
    assert len(own) >= 3
    for path in own:
        value = json.loads(path.read_text())
        assert value["additionalProperties"] is False and value["title"]
        assert set(value["required"]) <= set(value["properties"])


def test_tensors_of_a_record():
    record = {"outputs": {"y": {"path": "a"}}, "auxiliary": {"y": {"path": "b"}}}
    assert record_tensors(record) == {"outputs.y": "a", "auxiliary.y": "b"}
