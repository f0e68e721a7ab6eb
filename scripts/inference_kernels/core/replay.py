"""Replay: run references on captured inputs, compare all elements with the engine's saved outputs, report rows."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.compare import Comparison, compare
from inference_kernels.core.definitions import (
    call_reference,
    const_axes,
    definition_files,
    read_definition,
    resolve_shape,
)
from inference_kernels.core.errors import DatasetError, EnvironmentMissing, ReplayError
from inference_kernels.core.layout import blob_path
from inference_kernels.core.records import read_captures, read_workloads
from inference_kernels.core.tasks import Task, read_task
from inference_kernels.core.tensors import load_tensor
from inference_kernels.core.types import CaptureRecord, Definition, Workload
from inference_kernels.core.workloads import missing_input, missing_tensor

if TYPE_CHECKING:
    import torch

Resolver = Callable[[str], Path]


@dataclass(frozen=True)
class Replayed:
    """The replay of one workload. status: pass | fail | skipped | error; `reason` says why it is not a pass."""

    definition: str
    workload: str
    data_class: str
    status: str
    reason: str = ""
    comparisons: dict[str, Comparison] | None = None

    @property
    def errors(self) -> dict[str, Any]:
        """The figures of each output as a capture record holds them."""
        return {
            name: {key: value for key, value in result.to_json().items() if key != "worst"}
            for name, result in (self.comparisons or {}).items()
        }


def load_inputs(
    definition: Definition,
    workload: Workload,
    resolve: Resolver,
    device: str,
    load: Callable[[Path, str], "torch.Tensor"] = load_tensor,
) -> dict[str, Any]:
    """Load the inputs by name, in definition order: tensors to `device`, scalars as they are.

    resolve: path in a workload -> file.
    """
    values: dict[str, Any] = {}
    for name in definition["inputs"]:
        item = workload["inputs"][name]
        values[name] = item["value"] if item["type"] == "scalar" else load(resolve(item["path"]), device)
    return values


def replay_call(
    definition: Definition, workload: Workload, record: CaptureRecord, task: Task, resolve: Resolver, device: str
) -> dict[str, Comparison]:
    """Compare the reference on the captured inputs with the saved outputs, under the task's tolerance.

    resolve: path in a record -> file. Returns one Comparison per output.
    """
    inputs = load_inputs(definition, workload, resolve, device)
    results = reference_outputs(definition, workload, inputs)
    comparisons = {}
    for name in definition["outputs"]:
        saved = load_tensor(resolve(record["outputs"][name]["path"]), device)
        comparisons[name] = compare(results.pop(name), saved, task.tolerance)
    return comparisons


def reference_outputs(definition: Definition, workload: Workload, inputs: dict[str, Any]) -> dict[str, "torch.Tensor"]:
    """Run the reference; its outputs, contiguous. ReplayError unless they have the declared shapes and dtypes."""
    import torch

    axes = const_axes(definition) | workload["axes"]
    with torch.inference_mode():
        results = call_reference(definition, inputs)
    for name, spec in definition["outputs"].items():
        result, expected = results[name], f"{resolve_shape(spec, axes)} {spec['dtype']}"
        found = (
            f"{tuple(result.shape)} {str(result.dtype).removeprefix('torch.')}"
            if isinstance(result, torch.Tensor)
            else type(result).__name__
        )
        if found != expected:
            raise ReplayError(
                expected=f"output {name} {expected}",
                found=found,
                where=f"reference of {definition['name']}",
                remedy="correct the reference",
            )
        results[name] = result.contiguous()
    return results


def require_device(device: str) -> None:
    """Raise EnvironmentMissing unless torch can compute on `device`."""
    import torch

    try:
        torch.zeros(1, device=device).cpu()  # the device meta holds shapes without values
    except (RuntimeError, AssertionError) as error:
        raise EnvironmentMissing(
            expected=f"a device {device}",
            found=str(error).splitlines()[0],
            where="torch",
            remedy="use --device cpu, or a torch build for this GPU",
        ) from error


def count_workloads(root: Path, only: str | None = None) -> int:
    """Count the workloads below `root`, or of one definition."""
    paths = [path for path in definition_files(root) if only in (None, path.stem)]
    return sum(len(read_workloads(root, read_definition(path))) for path in paths)


def replay_root(root: Path, device: str, only: str | None = None) -> Iterator[Replayed]:
    """Replay every workload below `root`, or of one definition; those that cannot be replayed say why."""
    records = {record["workload"]: record for record in read_captures(root)}
    for path in definition_files(root):
        if only and path.stem != only:
            continue
        definition = read_definition(path)
        for workload in read_workloads(root, definition):
            yield _replay_workload(root, definition, workload, records.get(workload["uuid"]), device)


def _replay_workload(
    root: Path, definition: Definition, workload: Workload, record: CaptureRecord | None, device: str
) -> Replayed:
    name, uuid = definition["name"], workload["uuid"]
    if record is None:
        return Replayed(name, uuid, "unknown", "error", "no capture record; run check_workload_inputs.py")
    data_class = record["class"]
    if not record["outputs"]:
        return Replayed(name, uuid, data_class, "skipped", "imported without engine outputs")
    try:
        outputs = [item["path"] for item in record["outputs"].values()]
        missing = missing_input(root, name, workload) or missing_tensor(root, name, uuid, outputs)
        if missing:
            return Replayed(name, uuid, data_class, "skipped", missing)
        comparisons = replay_call(
            definition, workload, record, read_task(root, name), lambda path: blob_path(root, path, name, uuid), device
        )
    except DatasetError as error:
        return Replayed(name, uuid, data_class, "error", error.line())
    wrong = [f"{output}: {result.describe()}" for output, result in comparisons.items() if not result.passed]
    return Replayed(name, uuid, data_class, "fail" if wrong else "pass", "; ".join(wrong), comparisons)


REPLAY_COLUMNS = [
    "definition",
    "class",
    "workloads",
    "passed",
    "skipped",
    "max abs error",
    "tolerance used",
    "relative rms",
]


def replay_rows(results: list[Replayed]) -> list[dict[str, Any]]:
    """Summarise the results in a row per definition and class: counts, and the worst figures of all outputs."""
    groups: dict[tuple[str, str], list[Replayed]] = {}
    for result in results:
        groups.setdefault((result.definition, result.data_class), []).append(result)
    return [_row(name, data_class, group) for (name, data_class), group in sorted(groups.items())]


def _row(name: str, data_class: str, group: list[Replayed]) -> dict[str, Any]:
    compared = [item for result in group for item in (result.comparisons or {}).values()]
    return {
        "definition": name,
        "class": data_class,
        "workloads": len(group),
        "passed": sum(result.status == "pass" for result in group),
        "skipped": sum(result.status == "skipped" for result in group),
        "max abs error": _worst((item.max_abs_error for item in compared), ".3g"),
        "tolerance used": _worst((item.tolerance_used for item in compared), ".1%"),
        "relative rms": _worst((item.relative_rms for item in compared), ".2%"),
    }


def _worst(values: Iterable[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(max(known), form) if known else "-"


def replay_troubles(results: list[Replayed]) -> list[str]:
    """Write one line per workload that did not pass, with the reason."""
    return [
        f"{result.status} {result.definition} {result.workload}: {result.reason}"
        for result in results
        if result.status != "pass"
    ]


def replay_counts(results: list[Replayed]) -> dict[str, int]:
    """Count results. replayed: passed or failed the comparison; failed: also references that could not be run."""
    return {
        "replayed": sum(result.status in ("pass", "fail") for result in results),
        "failed": sum(result.status in ("fail", "error") for result in results),
        "skipped": sum(result.status == "skipped" for result in results),
    }
