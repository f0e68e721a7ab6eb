"""Self-test: each reference, built as a native solution, must pass its own task on every workload that is here."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.compare import compare
from inference_kernels.core.errors import DatasetError, ReplayError
from inference_kernels.core.layout import blob_path
from inference_kernels.core.native import native_data
from inference_kernels.core.replay import Replayed, load_inputs, reference_outputs
from inference_kernels.core.tasks import Task, read_task
from inference_kernels.core.types import BuildSpec, Definition, Solution
from inference_kernels.core.workloads import Available, available_workloads

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SelfTested(Replayed):
    """A replay that counts the reference's NaN and infinite elements by output; any of them fails the workload."""

    non_finite: dict[str, int] = field(default_factory=dict)


def reference_solution(definition: Definition) -> Solution:
    """Wrap the reference as a native Solution."""
    spec: BuildSpec = {
        "language": "python",
        "target_hardware": ["cpu", "cuda"],
        "entry_point": "main.py::run",
        "dependencies": [],
        "destination_passing_style": False,
    }
    return {
        "name": f"reference_{definition['name']}",
        "definition": definition["name"],
        "author": "inference-kernels",
        "spec": spec,
        "sources": [{"path": "main.py", "content": definition["reference"]}],
    }


def self_test(root: Path, definition: Definition, classes: dict[str, str], device: str) -> Iterator[SelfTested]:
    """Yield one result per workload of the definition; the native registry builds the solution and is cleaned up."""
    name = definition["name"]
    found = available_workloads(root, definition, classes)
    registry, run = None, None
    try:
        for item in found:
            if item.missing:
                yield SelfTested(name, item.uuid, item.data_class, "skipped", item.missing)
                continue
            if run is None:
                registry, run = _build(definition)
                task = read_task(root, name)
            yield _tested(root, definition, task, item, run, device)
    finally:
        if registry:
            registry.cleanup()


def _build(definition: Definition) -> tuple[Any, Any]:
    """Build the reference; return the native registry and the runnable. ReplayError if the native builder refuses."""
    data = native_data()
    native = importlib.import_module("flashinfer_bench.compile")
    registry = native.BuilderRegistry.get_instance()
    try:
        return registry, registry.build(
            data.Definition.model_validate(definition), data.Solution.model_validate(reference_solution(definition))
        )
    except native.BuildError as error:
        raise ReplayError(
            expected="a reference that the native builder takes",
            where=definition["name"],
            found=str(error).splitlines()[0],
            remedy="correct the reference",
        ) from error


def _tested(root: Path, definition: Definition, task: Task, item: Available, run: Any, device: str) -> SelfTested:
    """Compare both calls on one workload; inputs are loaded twice, so that neither sees changes of the other."""
    import torch

    fields = definition["name"], item.uuid, item.data_class

    def inputs() -> dict[str, Any]:
        return load_inputs(
            definition, item.workload, lambda path: blob_path(root, path, definition["name"], item.uuid), device
        )

    try:
        expected = reference_outputs(definition, item.workload, inputs())
    except DatasetError as error:
        return SelfTested(*fields, "error", error.line())
    broken = non_finite_counts(expected)
    if broken:
        counts = ", ".join(f"{name} {count} of {expected[name].numel()}" for name, count in broken.items())
        return SelfTested(*fields, "fail", f"the reference gives non-finite elements: {counts}", None, broken)
    with torch.inference_mode():
        results = run.call_value_returning(*inputs().values())
    actual = dict(zip(expected, results if isinstance(results, tuple) else (results,), strict=True))
    comparisons = {name: compare(actual[name], expected[name], task.tolerance) for name in expected}
    wrong = [f"{name}: {result.describe()}" for name, result in comparisons.items() if not result.passed]
    return SelfTested(*fields, "fail" if wrong else "pass", "; ".join(wrong), comparisons)


def non_finite_counts(outputs: dict[str, "torch.Tensor"]) -> dict[str, int]:
    """Count NaN and infinite elements by output; outputs without any are left out."""
    counts = {name: value.numel() - int(value.isfinite().sum()) for name, value in outputs.items()}
    return {name: count for name, count in counts.items() if count}
