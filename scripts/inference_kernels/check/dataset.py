"""Check a dataset root: everything that can be verified without running a reference.

All findings are collected; nothing stops at the first. Order: definitions, workload lines and capture records
(records.py), tasks, solutions (solutions.py), tensor files (blobs.py), constraints. The native schema is checked
against its exported copy; torch is loaded only where a constraint reads tensors.
"""

from functools import partial
from pathlib import Path
from typing import Any

from inference_kernels.check import blobs, records, solutions
from inference_kernels.check.state import Checked, Progress, guard, native_fits, report_error
from inference_kernels.core.constraints import check_constraint, names_in, refusal
from inference_kernels.core.definitions import const_axes, definition_files, read_definition, require_dataset
from inference_kernels.core.errors import PackError, SchemaError
from inference_kernels.core.pack import out_of_sync
from inference_kernels.core.records import CLASSES
from inference_kernels.core.schema import definition_errors, workload_errors
from inference_kernels.core.tasks import read_task, task_errors, task_path
from inference_kernels.core.tensors import load_tensor


def check_root(root: Path, only: str | None, jobs: int, progress: Progress) -> Checked:
    """Run all checks and collect their findings.

    only: name of the one definition to check; jobs: files hashed at a time. SchemaError if `root` is no dataset, or
    has no definition of that name.
    """
    require_dataset(root)
    state = Checked(root, only)
    _definitions(state)
    if only is not None and only not in state.definitions | dict.fromkeys(state.broken):
        raise SchemaError(
            expected=f"one of {sorted(state.definitions)}",
            found=only,
            where=str(root),
            remedy="check the definition's name",
        )
    records.check_workloads(state)
    records.check_records(state)
    _tasks(state)
    if only is None:
        solutions.check(state)
    blobs.check(state, jobs, progress)
    _constraints(state)
    return state


def _definitions(state: Checked) -> None:
    files = definition_files(state.root)
    for path in sorted(set((state.root / "definitions").rglob("*.json")) - set(files)):
        state.findings.error(
            state.relative(path),
            "definitions/<op_type>/<name>.json",
            "another depth",
            "move the file: the native loader reads every .json there",
        )
    for path in files:
        where = state.relative(path)
        definition = guard(state, partial(read_definition, path))
        if definition is None or not native_fits(state, "definition", definition, where):
            state.broken.add(path.stem)
            continue
        for error in definition_errors(definition, path, where):
            state.findings.add_error(error)
        if definition["name"] in state.definitions:
            state.findings.error(
                where, "a definition name that occurs once", f"{definition['name']} again", "remove one of the files"
            )
        state.definitions[definition["name"]] = definition
    for difference in out_of_sync(state.root):
        # A definition that cannot be read was reported above.
        if isinstance(difference, PackError) or Path(difference.where) not in files:
            report_error(state, difference)


def _tasks(state: Checked) -> None:
    for name in filter(state.wanted, sorted(state.definitions)):
        path = task_path(state.root, name)
        task = guard(state, partial(read_task, state.root, name))
        uuids = {uuid for uuid, (owner, _, _) in state.workloads.items() if owner == name}
        for error in task_errors(task, state.definitions[name], uuids, state.relative(path)) if task else ():
            state.findings.add_error(error)
    for path in sorted((state.root / "tasks").glob("*.json")):
        if path.stem not in state.definitions and path.stem not in state.broken:
            state.findings.error(
                state.relative(path),
                "the task of a known definition",
                path.stem,
                "remove it, or restore its definition",
            )


def _constraints(state: Checked) -> None:
    """Evaluate the rules of all workloads whose tensors are sound; an input is loaded when a rule reads it."""
    for name, workload, where in state.workloads.values():
        definition = state.definitions[name]
        if workload_errors(workload, definition, where):
            continue
        texts = [item["path"] for item in workload["inputs"].values() if item["type"] == "safetensors"]
        if not all(state.blobs.sound(text) for text in texts):
            continue
        names: dict[str, Any] = const_axes(definition) | workload["axes"]
        for key, item in workload["inputs"].items():
            names[key] = item["value"] if item["type"] == "scalar" else partial(load_tensor, state.root / item["path"])
        for rule in definition.get("constraints") or []:
            # A rule outside the language or with unknown names was reported with its definition.
            if not refusal(rule) and names_in(rule) <= set(names):
                guard(state, partial(check_constraint, rule, names, where))


def summary(state: Checked) -> dict[str, Any]:
    """Summarise a check for machines: counts by class and level, and figures of the blobs."""
    classes = {name: sum(found == name for found in state.records.values()) for name in CLASSES}
    return {
        "checked": len(state.workloads),
        "classes": classes,
        "blobs": state.blobs.figures(),
        "errors": state.findings.count("error"),
        "warnings": state.findings.count("warning"),
        "notes": state.findings.count("note"),
    }
