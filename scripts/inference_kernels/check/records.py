"""The records part of a check: workload lines, capture records, the blobs that both name."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from inference_kernels.check import blobs
from inference_kernels.check.state import Checked, Form, guard, native_fits
from inference_kernels.core.definitions import const_axes, resolve_shape
from inference_kernels.core.errors import DatasetError
from inference_kernels.core.files import LEFTOVER, lines, parse_json, read_text
from inference_kernels.core.layout import BlobPath, blob_path, workload_file
from inference_kernels.core.records import captures_file, saved_tensors, workload_uuid
from inference_kernels.core.schema import schema_errors, workload_errors
from inference_kernels.core.types import CaptureRecord, TensorInput, TensorReference, TensorSpec, Workload
from inference_kernels.seeded.recipes import recipe_from_json


def check_workloads(state: Checked) -> None:
    """Check the workload files of the wanted definitions, and that there are no other files."""
    expected = {workload_file(state.root, definition): name for name, definition in state.definitions.items()}
    for path in sorted(path for path in (state.root / "workloads").rglob("*") if not path.is_dir()):
        if path.name.startswith(LEFTOVER):
            blobs.leftover(state.findings, state.relative(path))
            continue
        if path.stem in state.broken:
            continue
        if path not in expected:
            state.findings.error(
                state.relative(path),
                "the workload file of a known definition",
                "another file",
                "remove it, or restore its definition",
            )
            continue
        if state.wanted(expected[path]):
            for where, row in _rows(state, path):
                _workload(state, expected[path], row, where)


def _rows(state: Checked, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`path:line`, object) of a JSONL file; a broken line is a finding, the next ones are still read."""
    text = guard(state, partial(read_text, path))
    for number, line in enumerate(lines(text or ""), 1):
        where = f"{state.relative(path)}:{number}"
        before = len(state.findings.items)
        row = guard(state, partial(parse_json, line, where))
        if isinstance(row, dict):
            yield where, row
        elif len(state.findings.items) == before:  # `null` is read without an error
            state.findings.error(where, "one JSON object per line", type(row).__name__, "repair the line")
        if len(state.findings.items) > before:
            state.blobs.mention(line)


def _claimed_uuid(row: dict[str, Any]) -> set[str]:
    """Find the UUID of a workload line that breaks the schema, if it has one."""
    workload = row.get("workload")
    uuid = workload.get("uuid") if isinstance(workload, dict) else None
    return {uuid} if isinstance(uuid, str) else set()


def _workload(state: Checked, name: str, row: dict[str, Any], where: str) -> None:
    definition, findings = state.definitions[name], state.findings
    if not native_fits(state, "trace", row, where):
        state.broken.update(_claimed_uuid(row))
        return
    if row["definition"] != name:
        findings.error(where, f"definition {name}", row["definition"], "move the line to its own file")
        return
    if row.get("solution") or row.get("evaluation"):
        findings.error(
            where,
            "a workload without solution and evaluation",
            "an evaluated trace",
            "keep evaluations out of workloads/",
        )
    workload = cast(Workload, row["workload"])
    problems = workload_errors(workload, definition, where)
    for error in problems:
        findings.add_error(error)
    uuid = workload["uuid"]
    if uuid in state.workloads:
        findings.error(
            where,
            "a UUID that occurs once",
            f"{uuid} again, after {state.workloads[uuid][2]}",
            "remove one of the lines",
        )
        return
    state.workloads[uuid] = (name, workload, where)
    if problems:
        return
    if workload_uuid(name, workload["inputs"]) != uuid:
        findings.error(
            where,
            f"UUID {workload_uuid(name, workload['inputs'])}, from the inputs",
            uuid,
            "import the workload again instead of editing it",
        )
    axes = const_axes(definition) | workload["axes"]
    for input_name, item in workload["inputs"].items():
        if item["type"] == "safetensors":
            spec = cast(TensorSpec, definition["inputs"][input_name])
            _expect_blob(state, name, item, input_name, (resolve_shape(spec, axes), spec["dtype"]), where)


def _expect_blob(
    state: Checked, definition: str, item: TensorReference | TensorInput, label: str, form: Form | None, where: str
) -> None:
    if item["tensor_key"] != "tensor":
        state.findings.error(where, "tensor_key 'tensor'", repr(item["tensor_key"]), "import it again")
        return
    path = guard(state, partial(blob_path, state.root, item["path"], definition, where))
    if path is not None:
        state.blobs.expect(BlobPath.parse(item["path"], where), label, form, where)


def check_records(state: Checked) -> None:
    """Check the capture records of the wanted definitions, and that every workload has one."""
    if captures_file(state.root).exists():
        for where, record in _rows(state, captures_file(state.root)):
            name = record.get("definition", "")
            if not isinstance(name, str) or state.wanted(name):  # what is no name breaks the schema
                _record(state, record, where)
    for uuid, (_, _, where) in state.workloads.items():
        if uuid not in state.records:
            state.findings.error(
                where, "a capture record of the workload", "none in captures.jsonl", "import its capture run again"
            )
    have = {name for name, _, _ in state.workloads.values()}
    for name in sorted(set(filter(state.wanted, state.definitions)) - have):
        state.findings.add("note", name, "captured workloads", "none", "capture and import them")


def _record(state: Checked, row: dict[str, Any], where: str) -> None:
    problems = schema_errors("capture_record", row, where)
    for error in problems:
        state.findings.add_error(error)
    if problems:
        return
    record = cast(CaptureRecord, row)
    uuid, name = record["workload"], record["definition"]
    if uuid in state.records:
        state.findings.error(where, "one record per workload", f"{uuid} again", "remove one of the lines")
        return
    state.records[uuid] = record["class"]
    if uuid in state.broken:
        for label, item in saved_tensors(record):
            _expect_blob(state, name, item, label, None, where)
        return
    if uuid not in state.workloads or state.workloads[uuid][0] != name:
        state.findings.error(
            where, f"a workload {uuid} of {name}", "none", "import the capture run again, or remove the record"
        )
        return
    _record_outputs(state, record, where)
    _recipes(state, record, where)
    if not record["replay"]["passed"]:
        state.findings.error(where, "a validated record", "replay.passed is false", "capture it again")


def _record_outputs(state: Checked, record: CaptureRecord, where: str) -> None:
    definition = state.definitions[record["definition"]]
    workload = state.workloads[record["workload"]][1]
    if record["outputs"] and set(record["outputs"]) != set(definition["outputs"]):
        state.findings.error(
            where, f"outputs {sorted(definition['outputs'])}", f"{sorted(record['outputs'])}", "capture all outputs"
        )
        return
    axes = const_axes(definition) | workload["axes"]
    needed = {axis for spec in definition["outputs"].values() for axis in spec["shape"]}
    complete = all(type(axes.get(axis)) is int for axis in needed)
    specs = {f"outputs.{name}": spec for name, spec in definition["outputs"].items() if complete}
    for label, item in saved_tensors(record):
        spec = specs.get(label)
        form = (resolve_shape(spec, axes), spec["dtype"]) if spec else None
        _expect_blob(state, definition["name"], item, label, form, where)
    for name in record["outputs"]:
        figures = record["statistics"].get(name)
        if figures and figures["min"] == figures["max"]:
            state.findings.add(
                "warning",
                where,
                f"an output {name} that depends on its inputs",
                f"the constant {figures['min']}",
                "capture with informative weights",
            )


def _recipes(state: Checked, record: CaptureRecord, where: str) -> None:
    """Check that every recipe is sound and belongs to an input, whose file may be absent until it is materialised."""
    inputs = state.workloads[record["workload"]][1]["inputs"]
    for name, recipe in record.get("generated", {}).items():
        item = inputs.get(name)
        if item is None or item["type"] != "safetensors":
            state.findings.error(where, f"recipes of the inputs {sorted(inputs)}", name, "import the capture run again")
            continue
        try:
            recipe_from_json(recipe)
        except DatasetError as error:
            state.findings.error(where, error.expected, f"{error.found} in the recipe of {name}", error.remedy)
        state.blobs.recipes.add(item["path"])
