"""Check a dataset root: everything that can be verified without running a reference.

All findings are collected; nothing stops at the first. Three passes: records (definitions, tasks, workloads,
captures), blobs (`blobs.py`: headers and hashes), and rules that need both (constraints).
The native schema is checked against its exported copy; torch is loaded only where a constraint reads tensors.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from inference_kernels.check import blobs, solutions
from inference_kernels.check.state import Checked, Progress, guard, report_error
from inference_kernels.core.constraints import check_constraint, names_in, refusal
from inference_kernels.core.definitions import (
    const_axes,
    definition_files,
    read_definition,
    require_dataset,
    resolve_shape,
)
from inference_kernels.core.errors import DatasetError, PackError, SchemaError
from inference_kernels.core.files import LEFTOVER, lines, parse_json, read_text
from inference_kernels.core.layout import BlobPath, blob_path, workload_file
from inference_kernels.core.pack import out_of_sync
from inference_kernels.core.records import CLASSES, captures_file, record_tensors, workload_uuid
from inference_kernels.core.schema import definition_errors, native_errors, schema_errors, unknown_keys, workload_errors
from inference_kernels.core.tasks import read_task, task_errors, task_path
from inference_kernels.core.tensors import load_tensor
from inference_kernels.seeded.recipes import recipe_from_json


def check_root(root: Path, only: str | None, jobs: int, progress: Progress) -> Checked:
    """Run all checks; the findings and counts are in the result. SchemaError if `root` is no dataset."""
    require_dataset(root)
    state = Checked(root, only)
    _definitions(state)
    if only and only not in state.definitions | dict.fromkeys(state.broken):
        raise SchemaError(
            expected=f"one of {sorted(state.definitions)}",
            found=only,
            where=str(root),
            remedy="check the definition's name",
        )
    _workloads(state)
    _records(state)
    _tasks(state)
    if only is None:
        solutions.check(state)
    blobs.check(state, jobs, progress)
    _constraints(state)
    return state


def _definitions(state: Checked) -> None:
    files = definition_files(state.root)
    for path in sorted(set((state.root / "definitions").rglob("*.json")) - set(files)):
        state.findings.add(
            "error",
            state.relative(path),
            "definitions/<op_type>/<name>.json",
            "another depth",
            "move the file: the native loader reads every .json there",
        )
    for path in files:
        where = state.relative(path)
        definition = guard(state, partial(read_definition, path))
        if definition is None or not _native(state, "definition", definition, where):
            state.broken.add(path.stem)
            continue
        for error in definition_errors(definition, path, where):
            state.findings.add_error(error)
        if definition["name"] in state.definitions:
            state.findings.add(
                "error",
                where,
                "a definition name that occurs once",
                f"{definition['name']} again",
                "remove one of the files",
            )
        state.definitions[definition["name"]] = definition
    for error in out_of_sync(state.root):
        # A definition that cannot be read was reported above.
        if isinstance(error, PackError) or Path(error.where) not in files:
            report_error(state, error)


def _native(state: Checked, kind: str, value: Any, where: str) -> bool:
    """Unknown keys and native schema; True if the native model takes the value."""
    if not isinstance(value, dict):
        state.findings.add("error", where, f"a {kind} object", type(value).__name__, "restore the file")
        return False
    for error in unknown_keys(kind, value, where):
        state.findings.add_error(error)
    problems = native_errors(kind, value, where)
    for error in problems:
        state.findings.add_error(error)
    return not problems


def _rows(state: Checked, path: Path) -> Iterator[tuple[str, dict]]:
    """(`path:line`, object) of a JSONL file; a broken line is a finding, the next ones are still read."""
    text = guard(state, partial(read_text, path))
    for number, line in enumerate(lines(text or ""), 1):
        where = f"{state.relative(path)}:{number}"
        before = len(state.findings.items)
        row = guard(state, partial(parse_json, line, where))
        if isinstance(row, dict):
            yield where, row
        elif row is not None:
            state.findings.add("error", where, "one JSON object a line", type(row).__name__, "repair the line")
        if len(state.findings.items) > before:
            state.blobs.mention(line)


def _workloads(state: Checked) -> None:
    expected = {workload_file(state.root, definition): name for name, definition in state.definitions.items()}
    for path in sorted(path for path in (state.root / "workloads").rglob("*") if not path.is_dir()):
        if path.name.startswith(LEFTOVER):
            blobs.leftover(state.findings, state.relative(path))
            continue
        if path.stem in state.broken:
            continue
        if path not in expected:
            state.findings.add(
                "error",
                state.relative(path),
                "the workload file of a known definition",
                "another file",
                "remove it, or restore its definition",
            )
            continue
        if state.wanted(expected[path]):
            for where, row in _rows(state, path):
                _workload(state, expected[path], row, where)


def _claimed_uuid(row: dict) -> set[str]:
    """The UUID of a workload line that breaks the schema, if it shows one."""
    workload = row.get("workload")
    uuid = workload.get("uuid") if isinstance(workload, dict) else None
    return {uuid} if isinstance(uuid, str) else set()


def _workload(state: Checked, name: str, row: dict, where: str) -> None:
    # The native model reads an input without `type` as random; the raw check below names that first.
    definition, findings = state.definitions[name], state.findings
    if not _native(state, "trace", row, where):
        state.broken.update(_claimed_uuid(row))
        return
    if row["definition"] != name:
        findings.add("error", where, f"definition {name}", row["definition"], "move the line to its own file")
        return
    if row.get("solution") or row.get("evaluation"):
        findings.add(
            "error",
            where,
            "a workload without solution and evaluation",
            "an evaluated trace",
            "keep evaluations out of workloads/",
        )
    workload = row["workload"]
    problems = workload_errors(workload, definition, where)
    for error in problems:
        findings.add_error(error)
    uuid = workload["uuid"]
    if uuid in state.workloads:
        findings.add(
            "error",
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
        findings.add(
            "error",
            where,
            f"UUID {workload_uuid(name, workload['inputs'])}, from the inputs",
            uuid,
            "import the workload again instead of editing it",
        )
    axes = const_axes(definition) | workload["axes"]
    for input_name, item in workload["inputs"].items():
        if item["type"] == "safetensors":
            shape = resolve_shape(definition["inputs"][input_name], axes)
            _expect_blob(state, name, item, input_name, (shape, definition["inputs"][input_name]["dtype"]), where)


def _expect_blob(
    state: Checked, definition: str, item: dict, label: str, form: tuple[tuple[int, ...], str] | None, where: str
) -> None:
    if item["tensor_key"] != "tensor":
        state.findings.add("error", where, "tensor_key 'tensor'", repr(item["tensor_key"]), "import it again")
        return
    path = guard(state, partial(blob_path, state.root, item["path"], definition, where))
    if path is not None:
        state.blobs.expect(BlobPath.parse(item["path"], where), label, form, where)


def _records(state: Checked) -> None:
    if captures_file(state.root).exists():
        for where, record in _rows(state, captures_file(state.root)):
            if state.wanted(record.get("definition", "")):
                _record(state, record, where)
    for uuid, (_, _, where) in state.workloads.items():
        if uuid not in state.records:
            state.findings.add(
                "error",
                where,
                "a capture record of the workload",
                "none in captures.jsonl",
                "import its capture run again",
            )
    have = {name for name, _, _ in state.workloads.values()}
    for name in sorted(set(filter(state.wanted, state.definitions)) - have):
        state.findings.add("note", name, "captured workloads", "none", "capture and import them")


def _record(state: Checked, record: dict, where: str) -> None:
    problems = schema_errors("capture_record", record, where)
    for error in problems:
        state.findings.add_error(error)
    if problems:
        return
    uuid, name = record["workload"], record["definition"]
    if uuid in state.records:
        state.findings.add("error", where, "one record a workload", f"{uuid} again", "remove one of the lines")
        return
    state.records[uuid] = record["class"]
    if uuid in state.broken:
        for label in record_tensors(record):
            group, output = label.split(".", 1)
            _expect_blob(state, name, record[group][output], label, None, where)
        return
    if uuid not in state.workloads or state.workloads[uuid][0] != name:
        state.findings.add(
            "error", where, f"a workload {uuid} of {name}", "none", "import the capture run again, or remove the record"
        )
        return
    _record_outputs(state, record, where)
    _recipes(state, record, where)
    if not record["replay"]["passed"]:
        state.findings.add("error", where, "a validated record", "replay.passed is false", "capture it again")


def _record_outputs(state: Checked, record: dict, where: str) -> None:
    definition = state.definitions[record["definition"]]
    workload = state.workloads[record["workload"]][1]
    if record["outputs"] and set(record["outputs"]) != set(definition["outputs"]):
        state.findings.add(
            "error",
            where,
            f"outputs {sorted(definition['outputs'])}",
            f"{sorted(record['outputs'])}",
            "capture all outputs",
        )
        return
    axes = const_axes(definition) | workload["axes"]
    needed = {axis for spec in definition["outputs"].values() for axis in spec["shape"]}
    complete = all(type(axes.get(axis)) is int for axis in needed)
    for label in record_tensors(record):
        group, name = label.split(".", 1)
        spec = definition["outputs"].get(name) if group == "outputs" and complete else None
        form = (resolve_shape(spec, axes), spec["dtype"]) if spec else None
        _expect_blob(state, definition["name"], record[group][name], label, form, where)
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


def _recipes(state: Checked, record: dict, where: str) -> None:
    """Every recipe is sound and belongs to an input; its path may be absent until it is materialised."""
    inputs = state.workloads[record["workload"]][1]["inputs"]
    for name, recipe in record.get("generated", {}).items():
        if "path" not in inputs.get(name, {}):
            state.findings.add(
                "error", where, f"recipes of the inputs {sorted(inputs)}", name, "import the capture run again"
            )
            continue
        try:
            recipe_from_json(recipe)
        except DatasetError as error:
            state.findings.add("error", where, error.expected, f"{error.found} in the recipe of {name}", error.remedy)
        state.blobs.recipes.add(inputs[name]["path"])


def _tasks(state: Checked) -> None:
    for name in filter(state.wanted, sorted(state.definitions)):
        path = task_path(state.root, name)
        task = guard(state, partial(read_task, state.root, name))
        uuids = {uuid for uuid, (owner, _, _) in state.workloads.items() if owner == name}
        for error in task_errors(task, state.definitions[name], uuids, state.relative(path)) if task else ():
            state.findings.add_error(error)
    for path in sorted((state.root / "tasks").glob("*.json")):
        if path.stem not in state.definitions and path.stem not in state.broken:
            state.findings.add(
                "error",
                state.relative(path),
                "the task of a known definition",
                path.stem,
                "remove it, or restore its definition",
            )


def _constraints(state: Checked) -> None:
    """Evaluate the rules of every workload whose tensors are here and sound; inputs are loaded when a rule asks."""
    for name, workload, where in state.workloads.values():
        definition = state.definitions[name]
        if workload_errors(workload, definition, where):
            continue
        texts = [item["path"] for item in workload["inputs"].values() if item["type"] == "safetensors"]
        if not all(state.blobs.sound(text) for text in texts):
            continue
        names: dict[str, Any] = const_axes(definition) | workload["axes"]
        for key, item in workload["inputs"].items():
            names[key] = item["value"] if "value" in item else partial(load_tensor, state.root / item["path"])
        for rule in definition.get("constraints") or []:
            # A rule outside the language or with unknown names was reported with its definition.
            if not refusal(rule) and names_in(rule) <= set(names):
                guard(state, partial(check_constraint, rule, names, where))


def summary(state: Checked) -> dict[str, Any]:
    """The machine-readable result: counts by class and level, blob figures, and all findings."""
    classes = {name: sum(found == name for found in state.records.values()) for name in CLASSES}
    return {
        "checked": len(state.workloads),
        "classes": classes,
        "blobs": state.blobs.figures(),
        "errors": state.findings.count("error"),
        "warnings": state.findings.count("warning"),
        "notes": state.findings.count("note"),
    }
