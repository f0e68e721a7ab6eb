"""Acceptance tasks: `tasks/<definition>.json`, the only source of tolerances."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from inference_kernels.core.compare import Tolerance
from inference_kernels.core.definitions import var_axes
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import parse_json, read_json, read_text, write_text
from inference_kernels.core.records import CLASSES
from inference_kernels.core.schema import schema_errors
from inference_kernels.core.workloads import Available


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


DEV_LIMIT = 10


DEV = re.compile(r'^(?P<indent>[ \t]*)"dev": \[[^\]]*\]', re.MULTILINE)


def choose_dev(task: Task, workloads: Iterable[Available]) -> list[str]:
    """UUIDs of the subset, ordered by the group axis. The same workloads give the same subset.

    Classes take turns. Within a class so do the values of the group axis, smallest and largest first, then
    the middles of the gaps; within a value, workloads of other shapes likewise.
    """
    items = list(workloads)
    kinds = (*CLASSES, "unknown")
    queues = [_queue(task, [item for item in items if item.data_class == kind]) for kind in kinds]
    chosen = _take_turns(queues)[:DEV_LIMIT]
    return [item.uuid for item in sorted(chosen, key=lambda item: _order(task, item))]


def _queue(task: Task, items: list[Available]) -> list[Available]:
    groups: dict[int, list[Available]] = {}
    for item in sorted(items, key=lambda item: _order(task, item)):
        groups.setdefault(item.workload["axes"][task.group_axis], []).append(item)
    return _take_turns([_spread(group) for group in _spread(list(groups.values()))])


def _order(task: Task, item: Available) -> tuple:
    axes = item.workload["axes"]
    return axes[task.group_axis], sorted(axes.items()), item.uuid


def _take_turns(queues: list[list]) -> list:
    """First of each queue, second of each queue, ..."""
    return [item for turn in zip_longest(*queues) for item in turn if item is not None]


def _spread(values: list) -> list:
    """First, last, then the middles of ever smaller gaps: every prefix is spread over the whole list."""
    if len(values) < 3:
        return values
    order, gaps = [0, len(values) - 1], [(0, len(values) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle > low:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [values[index] for index in order]


def replace_dev(text: str, uuids: list[str], where: str) -> str:
    """The task file's text with another dev list; everything else stays as it is written."""

    def block(match: re.Match) -> str:
        indent = match["indent"]
        lines = ",\n".join(f"{indent}{indent}{json.dumps(uuid)}" for uuid in uuids)
        return f'{indent}"dev": [\n{lines}\n{indent}]' if uuids else f'{indent}"dev": []'

    changed, found = DEV.subn(block, text)
    if found != 1 or parse_json(changed, where) != parse_json(text, where) | {"dev": uuids}:
        raise SchemaError(
            expected='a line `"dev": [...]` of its own',
            found=f"{found} of them",
            where=where,
            remedy="format the task file like the others",
        )
    return changed


def write_dev(root: Path, name: str, uuids: list[str]) -> bool:
    """Write the dev list into the task of definition `name`; False if it is there already."""
    path = task_path(root, name)
    text = read_text(path)
    changed = replace_dev(text, uuids, path.relative_to(root).as_posix())
    if changed != text:
        write_text(path, changed)
    return changed != text
