"""Measure which wrong answers a task's tolerance fails to tell from right ones.

Every wrong answer is made from a workload's own inputs and reference outputs and judged by the task's rule. A
wrong set of outputs is told apart if at least one output fails.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.compare import Comparison, compare
from inference_kernels.core.definitions import const_axes, resolve_shape, var_axes
from inference_kernels.core.errors import DatasetError
from inference_kernels.core.layout import blob_path
from inference_kernels.core.replay import load_inputs, reference_outputs
from inference_kernels.core.tasks import Task, read_task
from inference_kernels.core.types import Definition, Workload
from inference_kernels.core.workloads import Available, available_workloads

if TYPE_CHECKING:
    import torch

Wrong = tuple[str, str, dict[str, "torch.Tensor"]]


@dataclass(frozen=True)
class Judged:
    """One output of a wrong answer. share: of matching elements, None where the comparison gives none."""

    passed: bool
    share: float | None


@dataclass(frozen=True)
class WrongAnswer:
    """One wrong answer for one workload; outputs that it does not replace are right and not listed."""

    workload: str
    data_class: str
    trick: str
    note: str
    outputs: dict[str, Judged]

    @property
    def told_apart(self) -> bool:
        return not all(item.passed for item in self.outputs.values())

    @property
    def share(self) -> float | None:
        """The share in the output with the fewest matching elements, which gives the answer away."""
        return min((item.share for item in self.outputs.values() if item.share is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        outputs = {name: {"passed": item.passed, "share": item.share} for name, item in self.outputs.items()}
        return {
            "workload": self.workload,
            "class": self.data_class,
            "trick": self.trick,
            "note": self.note,
            "told_apart": self.told_apart,
            "outputs": outputs,
        }


@dataclass
class Measured:
    """The trials of one definition; `skipped` says by UUID which workloads could not be used and why."""

    definition: str
    trials: list[WrongAnswer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def workloads(self) -> dict[str, str]:
        """The class of each measured workload."""
        return {trial.workload: trial.data_class for trial in self.trials}

    def to_json(self) -> dict[str, Any]:
        return {
            "definition": self.definition,
            "trials": [trial.to_json() for trial in self.trials],
            "skipped": self.skipped,
            "errors": self.errors,
        }


def measure(root: Path, definition: Definition, classes: dict[str, str], device: str) -> Measured:
    """Try all wrong answers on the dev workloads of the definition's task, or on all workloads if it names none.

    classes: from `data_classes`. Failures are in the result; nothing is raised for them.
    """
    result = Measured(definition["name"])
    try:
        task = read_task(root, definition["name"])
        found = available_workloads(root, definition, classes, task.dev)
        known = {item.uuid for item in found}
        result.errors = [f"dev workload {uuid} does not exist" for uuid in task.dev if uuid not in known]
        result.skipped = {item.uuid: item.missing for item in found if item.missing}
        for trial in _trials(root, definition, task, [item for item in found if not item.missing], device):
            result.trials.append(trial)
    except DatasetError as error:
        result.errors.append(error.line())
    return result


def _trials(
    root: Path, definition: Definition, task: Task, found: list[Available], device: str
) -> Iterator[WrongAnswer]:
    """Yield trials, holding the reference outputs of at most two workloads: a workload's own and its partner's."""
    shapes = {item.uuid: _output_shapes(definition, item.workload) for item in found}
    found = sorted(found, key=lambda item: (shapes[item.uuid], item.uuid))
    held: dict[str, dict[str, torch.Tensor]] = {}
    for index, item in enumerate(found):
        partner = _partner(found, index, shapes)
        needed = [item] if partner is None else [item, partner]
        held = {uuid: outputs for uuid, outputs in held.items() if uuid in {other.uuid for other in needed}}
        for other in needed:
            if other.uuid not in held:
                held[other.uuid] = reference_outputs(
                    definition, other.workload, _inputs(root, definition, other, device)
                )
        right, inputs = held[item.uuid], _inputs(root, definition, item, device)
        other_outputs = (partner.uuid, held[partner.uuid]) if partner else None
        for trick, note, wrong in wrong_answers(definition, inputs, right, other_outputs):
            judged = {name: _judge(compare(value, right[name], task.tolerance)) for name, value in wrong.items()}
            yield WrongAnswer(item.uuid, item.data_class, trick, note, judged)


def _partner(found: list[Available], index: int, shapes: dict[str, Any]) -> Available | None:
    """Choose the neighbour in shape order whose outputs stand in for this workload's, of equal shape if possible."""
    near = [found[other] for other in (index - 1, index + 1) if 0 <= other < len(found)]
    equal = [item for item in near if shapes[item.uuid] == shapes[found[index].uuid]]
    return next(iter(equal or near), None)


def _inputs(root: Path, definition: Definition, item: Available, device: str) -> dict[str, Any]:
    return load_inputs(
        definition, item.workload, lambda path: blob_path(root, path, definition["name"], item.uuid), device
    )


def _output_shapes(definition: Definition, workload: Workload) -> list[tuple[int, ...]]:
    axes = const_axes(definition) | workload["axes"]
    return [resolve_shape(spec, axes) for spec in definition["outputs"].values()]


def _judge(result: Comparison) -> Judged:
    return Judged(result.passed, result.matched_ratio if result.status in ("pass", "mismatch") else None)


def wrong_answers(
    definition: Definition,
    inputs: dict[str, Any],
    outputs: dict[str, "torch.Tensor"],
    other: tuple[str, dict[str, "torch.Tensor"]] | None,
) -> Iterator[Wrong]:
    """Yield (trick, note, replaced outputs). other: UUID and reference outputs of another workload."""
    import torch

    yield "zeros", "", {name: torch.zeros_like(value) for name, value in outputs.items()}
    yield "mean value", "", {name: _mean_like(value) for name, value in outputs.items()}
    for name, value in outputs.items():
        for label, tensor in inputs.items():
            if hasattr(tensor, "shape") and (tensor.shape, tensor.dtype) == (value.shape, value.dtype):
                yield f"input {label} as {name}", "", {name: tensor}
    if other:
        fitted = {name: fit(other[1][name], tuple(value.shape)) for name, value in outputs.items()}
        manner = "; ".join(f"{name} {how}" for name, (_, how) in fitted.items() if how)
        yield (
            "other workload",
            f"{other[0]}{': ' + manner if manner else ''}",
            {name: value for name, (value, _) in fitted.items()},
        )
    swapped = {
        name: item
        for name, value in outputs.items()
        if (item := swap_rows(value, definition["outputs"][name]["shape"], var_axes(definition)))
    }
    if swapped:
        yield (
            "rows swapped",
            "; ".join(f"{name}: {how}" for name, (_, how) in swapped.items()),
            {name: value for name, (value, _) in swapped.items()},
        )


def _mean_like(value: "torch.Tensor") -> "torch.Tensor":
    """Fill a tensor with the mean of `value`, rounded for integer outputs."""
    import torch

    if not value.numel():
        return value
    mean = value.float().mean(dtype=torch.float64).item()
    return torch.full_like(value, mean if value.dtype.is_floating_point else round(mean))


def fit(value: "torch.Tensor", shape: tuple[int, ...]) -> tuple["torch.Tensor", str]:
    """Crop or tile `value` along every axis to `shape`; return it and what was done, in words (empty if nothing).

    An empty axis cannot be tiled; zeros stand in for it.
    """
    import torch

    manner = []
    for axis, (have, want) in enumerate(zip(tuple(value.shape), shape)):
        if have == want:
            continue
        if have == 0:
            return torch.zeros(shape, dtype=value.dtype, device=value.device), "empty: zeros instead"
        value = value.index_select(axis, torch.arange(want, device=value.device) % have)
        manner.append(f"{'cropped' if want < have else 'tiled'} {have} to {want} on axis {axis}")
    return value, ", ".join(manner)


def swap_rows(value: "torch.Tensor", axes: list[str], variable: list[str]) -> tuple["torch.Tensor", str] | None:
    """Exchange the first two neighbouring rows that differ, on the first variable axis that has such a pair.

    Returns None if no variable axis has one.
    """
    import torch

    for axis, name in enumerate(axes):
        for row in range(value.shape[axis] - 1 if name in variable else 0):
            if not torch.equal(value.select(axis, row), value.select(axis, row + 1)):
                order = torch.arange(value.shape[axis], device=value.device)
                order[row], order[row + 1] = row + 1, row
                return value.index_select(axis, order), f"{name} {row} and {row + 1}"
    return None


def floor_share(share: float | None) -> float | None:
    """Round a share down to three digits, so that 1.0 means all elements."""
    return None if share is None else math.floor(share * 1000) / 1000
