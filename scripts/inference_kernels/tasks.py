"""Acceptance tasks: `tasks/<definition>.json`, the only source of tolerances."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .compare import Tolerance
from .definitions import var_axes
from .errors import SchemaError
from .files import read_json
from .schema import schema_errors


@dataclass(frozen=True)
class Task:
    definition: str
    workloads: str
    baseline: str
    tolerance: Tolerance
    dev: tuple[str, ...]
    group_axis: str
    timing: dict[str, Any]


def task_path(root: Path, name: str) -> Path:
    return root / "tasks" / f"{name}.json"


def read_task(root: Path, name: str) -> Task:
    """The task of definition `name`; SchemaError if there is none or it breaks its schema."""
    path = task_path(root, name)
    where = path.relative_to(root).as_posix()
    value = read_json(path)
    errors = schema_errors("task", value, where)
    if errors:
        raise errors[0]
    if value["definition"] != name:
        raise SchemaError(
            expected=f"definition {name}",
            found=value["definition"],
            where=where,
            remedy="name the task after its definition",
        )
    fields = value | {"tolerance": Tolerance(**value["tolerance"]), "dev": tuple(value["dev"])}
    return Task(**fields)


def task_errors(task: Task, definition: dict, uuids: set[str], where: str) -> list[SchemaError]:
    """Does the task fit its definition and workloads? `uuids` are those of the definition's workloads."""
    faults = []
    expected = f"workloads/{definition['op_type']}/{definition['name']}.jsonl"
    if task.workloads != expected:
        faults.append((expected, task.workloads, "correct the task's workloads"))
    if task.group_axis not in var_axes(definition):
        faults.append((f"a variable axis of {var_axes(definition)}", task.group_axis, "correct group_axis"))
    for uuid in task.dev:
        if uuid not in uuids:
            faults.append(("dev UUIDs of existing workloads", uuid, "choose the dev subset again"))
    return [
        SchemaError(expected=expected, found=found, where=where, remedy=remedy) for expected, found, remedy in faults
    ]
