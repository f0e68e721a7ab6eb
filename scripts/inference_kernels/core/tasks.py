"""Acceptance tasks: `tasks/<definition>.json`, the only source of tolerances."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

from inference_kernels.core.compare import Tolerance
from inference_kernels.core.definitions import tensor_inputs, var_axes
from inference_kernels.core.errors import SchemaError, as_errors
from inference_kernels.core.files import json_line, read_object, write_text
from inference_kernels.core.records import CLASSES
from inference_kernels.core.schema import schema_errors
from inference_kernels.core.types import (
    Definition,
    FreshRuleDocument,
    Rearrangement,
    TaskDocument,
    TaskTiming,
    TensorSpec,
)
from inference_kernels.core.workloads import Available

DEV_LIMIT = 10
# Kinds of `fresh` that decode, change and encode bytes again; the others work on values.
PACKED = {"fp8_rows", "fp8_pages", "fp4_pages"}
FLOATS = {"bfloat16", "float16", "float32"}
Item = TypeVar("Item")


@dataclass(frozen=True)
class Task:
    """A task document as the library uses it; judge/rearrange.py reads `rearrangements`, judge/fresh.py `fresh`."""

    definition: str
    workloads: str
    baseline: str
    tolerance: Tolerance
    dev: tuple[str, ...]
    group_axis: str
    timing: TaskTiming
    rearrangements: tuple[Rearrangement, ...] = ()
    fresh: tuple[FreshRuleDocument, ...] = ()


def task_path(root: Path, name: str) -> Path:
    return root / "tasks" / f"{name}.json"


def read_document(root: Path, name: str) -> TaskDocument:
    """Read the task file of definition `name`; SchemaError if there is none or it breaks its schema."""
    path = task_path(root, name)
    where = path.relative_to(root).as_posix()
    value = read_object(path)
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
    return cast(TaskDocument, value)


def read_task(root: Path, name: str) -> Task:
    """Read the task of definition `name`; SchemaError if there is none or it breaks its schema."""
    value = read_document(root, name)
    return Task(
        definition=name,
        workloads=value["workloads"],
        baseline=value["baseline"],
        tolerance=Tolerance(**value["tolerance"]),
        dev=tuple(value["dev"]),
        group_axis=value["group_axis"],
        timing=value["timing"],
        rearrangements=tuple(value.get("rearrangements", ())),
        fresh=tuple(value.get("fresh", ())),
    )


def task_text(value: TaskDocument) -> str:
    """Format a task file: a line per key, and per item of a list."""
    fields = []
    for key, item in value.items():
        text = json_line(item)
        if isinstance(item, list) and item:
            text = "[\n" + ",\n".join(f"    {json_line(entry)}" for entry in item) + "\n  ]"
        fields.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def write_dev(root: Path, name: str, uuids: list[str]) -> bool:
    """Write the dev list into the task of definition `name`; False if it is there already."""
    value = read_document(root, name)
    if value["dev"] == uuids:
        return False
    value["dev"] = uuids
    write_text(task_path(root, name), task_text(value))
    return True


def task_errors(task: Task, definition: Definition, uuids: set[str], where: str) -> list[SchemaError]:
    """List where the task does not fit its definition or the `uuids` of its workloads."""
    faults: list[tuple[str, str, str]] = []
    expected = f"workloads/{definition['op_type']}/{definition['name']}.jsonl"
    if task.workloads != expected:
        faults.append((expected, task.workloads, "correct the task's workloads"))
    if task.group_axis not in var_axes(definition):
        faults.append((f"a variable axis of {var_axes(definition)}", task.group_axis, "correct group_axis"))
    for uuid in task.dev:
        if uuid not in uuids:
            faults.append(("dev UUIDs of existing workloads", uuid, "choose the dev subset again"))
    return as_errors(faults + fresh_faults(task, definition), where)


def fresh_faults(task: Task, definition: Definition) -> list[tuple[str, str, str]]:
    """List where the rules of `fresh` do not fit the inputs of `definition`."""
    tensors = dict(tensor_inputs(definition))
    faults = [
        (expected, f"{rule['tensor']}: {found}", "correct the task's rules of fresh")
        for rule in task.fresh
        for expected, found in _rule_faults(rule, tensors)
    ]
    named = [name for rule in task.fresh for name in (rule["tensor"], rule.get("scale")) if name]
    twice = sorted({name for name in named if named.count(name) > 1})
    return faults + [("one rule of fresh a tensor", name, "join the rules of this tensor") for name in twice]


def _rule_faults(rule: FreshRuleDocument, tensors: dict[str, TensorSpec]) -> Iterator[tuple[str, str]]:
    spec, how = tensors.get(rule["tensor"]), rule["how"]
    if spec is None:
        yield f"a tensor input of {sorted(tensors)}", "not one"
        return
    packed = how in PACKED
    if (spec["dtype"] == "int8") != packed or not (packed or spec["dtype"] in FLOATS):
        yield f"int8 bytes for {sorted(PACKED)}, one of {sorted(FLOATS)} for the others", f"{spec['dtype']} for {how}"
    axes = 1 if packed or "cut" in rule else max(1, len(spec["shape"]) - 1)
    if rule.get("axis", 0) >= axes:
        yield f"an axis below {axes}", f"axis {rule.get('axis')} of {spec['shape']}"
    if (how == "fp8_rows") != ("scale" in rule) or ("scale" in rule and rule["scale"] not in tensors):
        yield "scale, the tensor of the scales, for fp8_rows and for nothing else", f"{rule.get('scale')} for {how}"
    if "group" in rule and how != "fp8_rows":
        yield "group for fp8_rows only", how


def choose_dev(task: Task, workloads: Iterable[Available]) -> list[str]:
    """Choose the UUIDs of the dev subset, ordered by the group axis; the same workloads give the same subset.

    Classes alternate. Within a class so do the values of the group axis: smallest, largest, then the middles of
    the gaps; within a value, workloads of other shapes likewise.
    """
    items = list(workloads)
    kinds = (*CLASSES, "unknown")
    queues = [_queue(task, [item for item in items if item.data_class == kind]) for kind in kinds]
    chosen = _interleaved(queues)[:DEV_LIMIT]
    return [item.uuid for item in sorted(chosen, key=lambda item: _order(task, item))]


def _queue(task: Task, items: list[Available]) -> list[Available]:
    groups: dict[int, list[Available]] = {}
    for item in sorted(items, key=lambda item: _order(task, item)):
        groups.setdefault(item.workload["axes"][task.group_axis], []).append(item)
    return _interleaved([_spread(group) for group in _spread(list(groups.values()))])


def _order(task: Task, item: Available) -> tuple[Any, ...]:
    axes = item.workload["axes"]
    return axes[task.group_axis], sorted(axes.items()), item.uuid


def _interleaved(queues: list[list[Item]]) -> list[Item]:
    """Take the first of each queue, then the second of each queue, ..."""
    return [item for row in zip_longest(*queues) for item in row if item is not None]


def _spread(values: list[Item]) -> list[Item]:
    """Order as first, last, then middles of ever smaller gaps: every prefix is spread over the whole list."""
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
