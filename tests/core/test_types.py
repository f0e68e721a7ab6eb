"""The types of the dataset's documents have the keys of their JSON Schemas."""

import pytest

from inference_kernels.core import types
from inference_kernels.core.files import read_json
from inference_kernels.core.schema import SCHEMAS

pytestmark = pytest.mark.no_torch


@pytest.mark.parametrize(
    "document, schema, place",
    [
        (types.Definition, "native_definition", ()),
        (types.TensorSpec, "native_definition", ("$defs", "TensorSpec")),
        (types.Solution, "native_solution", ()),
        (types.BuildSpec, "native_solution", ("$defs", "BuildSpec")),
        (types.SourceFile, "native_solution", ("$defs", "SourceFile")),
        (types.WorkloadLine, "native_trace", ()),
        (types.Workload, "native_trace", ("$defs", "Workload")),
        (types.CaptureRecord, "capture_record", ()),
        (types.Statistics, "capture_record", ("properties", "statistics", "additionalProperties")),
        (types.ReplayRecord, "capture_record", ("properties", "replay")),
        (types.TensorReference, "capture_record", ("$defs", "tensors", "additionalProperties")),
        (types.TaskDocument, "task", ()),
        (types.ToleranceDocument, "task", ("properties", "tolerance")),
        (types.TaskTiming, "task", ("properties", "timing")),
        (types.Rearrangement, "task", ("properties", "rearrangements", "items")),
        (types.FreshRuleDocument, "task", ("properties", "fresh", "items")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_types_have_the_keys_of_the_schemas(document, schema, place):
    found = read_json(SCHEMAS / f"{schema}.schema.json")
    for key in place:
        found = found[key]
    assert document.__required_keys__ | document.__optional_keys__ == set(found["properties"])
    assert document.__required_keys__ >= set(found["required"])
