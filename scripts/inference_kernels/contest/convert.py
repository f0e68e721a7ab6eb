"""Convert contest workloads into a capture run of class `contest`, for the ordinary importer.

The contest publishes no engine outputs. Instead the reference must return finite outputs of the declared
shapes and dtypes on each workload, which is recorded as `replay`. A workload that fails this is left out and
named; the failure says nothing about any solution.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.run import RunFolder
from inference_kernels.contest.source import DATASET, ContestWorkload, line_errors, open_tensors
from inference_kernels.core.constraints import check_constraint
from inference_kernels.core.definitions import const_axes, definition_files, read_definition, resolve_shape
from inference_kernels.core.errors import ReplayError
from inference_kernels.core.files import canonical_json, write_json
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.records import statistics, tensor_reference, workload_uuid
from inference_kernels.core.replay import reference_outputs
from inference_kernels.core.tensors import save_tensor

if TYPE_CHECKING:
    import torch

NOT_STATED = "not stated by the contest"
CRITERION = {"check": "reference outputs are finite and of the declared shapes and dtypes"}


@dataclass(frozen=True)
class Conversion:
    """What became of one contest workload. status: converted | known | failed; uuid: ours, None if it failed."""

    definition: str
    source: str
    status: str
    uuid: str | None = None
    reason: str = ""


def run_settings(root: Path, revision: str, digests: dict[str, str], names: list[str]) -> dict[str, Any]:
    """List what a run of contest workloads depends on, definitions included: other settings are another run."""
    contracts = {
        path.stem: hashlib.sha256(canonical_json(read_definition(path)).encode()).hexdigest()
        for path in definition_files(root)
        if path.stem in names
    }
    return {
        "kind": "contest",
        "class": "contest",
        "dataset": DATASET,
        "revision": revision,
        "workload_files": digests,
        "definitions": contracts,
    }


def run_name(settings: dict[str, Any]) -> str:
    """Name the run's folder after its settings."""
    return f"run-{hashlib.sha256(canonical_json(settings).encode()).hexdigest()[:12]}"


def convert(sources: list[ContestWorkload], tree: Path, run: RunFolder, device: str) -> Iterator[Conversion]:
    """Convert every workload that the run lacks and complete the run; after a kill, call it again."""
    finished = set(run.finished_cases)
    for source in sources:
        if source.case in finished:
            yield Conversion(source.definition["name"], source.uuid, "known")
            continue
        start = time.monotonic()
        try:
            uuid = _convert_one(source, tree, run, device)
        except ReplayError as error:
            yield Conversion(source.definition["name"], source.uuid, "failed", None, error.line())
            continue
        run.finish_case(source.case, [], time.monotonic() - start)
        yield Conversion(source.definition["name"], source.uuid, "converted", uuid)
    run.complete()


def _convert_one(source: ContestWorkload, tree: Path, run: RunFolder, device: str) -> str:
    definition = source.definition
    inputs = load_inputs(source)
    _check_constraints(source, inputs)
    figures = check_reference(source, inputs, device)
    stored = {name: _store(run, definition["name"], value) for name, value in inputs.items()}
    uuid = workload_uuid(definition["name"], stored)
    workload = {"axes": source.axes, "inputs": stored, "uuid": uuid}
    line_errors(source, workload)
    call = run.root / "calls" / f"{uuid}.json"
    if not call.exists():  # equal tensors make one workload here, with the first record
        write_json(run.root / "validation" / call.name, _replay(figures, device))
        write_json(call, {"workload": workload, "record": _record(source, tree, run, uuid, inputs)})
    return uuid


def _store(run: RunFolder, definition: str, value: Any) -> dict[str, Any]:
    """Return the entry of one input in a workload; write a tensor to the run."""
    if not hasattr(value, "shape"):
        return {"type": "scalar", "value": value}
    digest, _ = save_tensor(run.root / "blob" / definition, value)
    return {"type": "safetensors"} | tensor_reference(f"blob/{definition}/{digest}.safetensors")


def load_inputs(source: ContestWorkload) -> dict[str, Any]:
    """Load inputs by name in definition order, on the CPU; an absent state is zeros of the declared shape."""
    import torch

    sizes = const_axes(source.definition) | source.axes
    values: dict[str, Any] = {}
    for name, spec in source.definition["inputs"].items():
        if name in source.zeros:
            values[name] = torch.zeros(resolve_shape(spec, sizes), dtype=getattr(torch, spec["dtype"]))
        elif name in source.scalars:
            values[name] = source.scalars[name]
        else:
            path, key = source.tensors[name]
            with open_tensors(path, "pt") as stream:
                values[name] = stream.get_tensor(key)
    return values


def _check_constraints(source: ContestWorkload, inputs: dict[str, Any]) -> None:
    names = const_axes(source.definition) | source.axes | inputs
    for rule in source.definition.get("constraints") or []:
        check_constraint(rule, names, source.where)


def check_reference(source: ContestWorkload, inputs: dict[str, Any], device: str) -> dict[str, dict]:
    """Run the reference on a workload and return figures of its outputs.

    ReplayError if the reference raises, or returns another shape or dtype or a value that is not finite.
    """
    placed = {name: value.to(device) if hasattr(value, "shape") else value for name, value in inputs.items()}
    try:
        results = reference_outputs(source.definition, {"axes": source.axes}, placed)
    except ReplayError as error:
        raise _failed(source, error.expected, error.found) from error
    figures = {name: _figures(result) for name, result in results.items()}
    for name, item in figures.items():
        if item["non_finite"]:
            raise _failed(
                source,
                f"finite values in the reference's {name}",
                f"{item['non_finite']:,} of {item['elements']:,} are not",
            )
    return figures


def _failed(source: ContestWorkload, expected: str, found: str) -> ReplayError:
    return ReplayError(
        expected=expected,
        found=found,
        where=source.where,
        remedy="left out; its tensors or the reference are the cause, no solution was run",
    )


def _figures(result: "torch.Tensor") -> dict[str, Any]:
    found = statistics(result)
    return {
        "shape": list(result.shape),
        "dtype": str(result.dtype).removeprefix("torch."),
        "elements": result.numel(),
        "non_finite": found["non_finite"],
        "min": found["min"],
        "max": found["max"],
        "max_abs_error": None,
        "tolerance_used": None,
    }


def _replay(figures: dict[str, dict[str, Any]], device: str) -> dict[str, Any]:
    import torch

    return {"criterion": CRITERION, "device": device, "torch": torch.__version__, "errors": figures, "passed": True}


def _record(source: ContestWorkload, tree: Path, run: RunFolder, uuid: str, inputs: dict[str, Any]) -> dict:
    files = sorted({path for path, _ in source.tensors.values()})
    stages = [tag.removeprefix("stage:") for tag in source.definition["tags"] if tag.startswith("stage:")]
    notes = [f"input {name} absent in the contest's workload: zeros written" for name in source.zeros]
    notes += [f"input {name} of the contest's workload left out: not in the definition" for name in source.dropped]
    digests = {path.relative_to(tree).as_posix(): sha256_file(path) for path in files}
    return {
        "workload": uuid,
        "definition": source.definition["name"],
        "class": "contest",
        "model": {"id": "Qwen3-Next", "revision": NOT_STATED},
        "engine": {"name": NOT_STATED, "version": NOT_STATED, "flags": {}, "environment": {}, "substitutions": []},
        "hardware": {"device": NOT_STATED},
        "request": {
            "case": "contest",
            "dataset": DATASET,
            "revision": run.settings["revision"],
            "source_workload": source.uuid,
            "source_file": source.file,
            "source_tensors": digests,
        },
        "operation": {"call_path": NOT_STATED, "layer": None, "step": None, "phase": stages[0], "ranks_gathered": 1},
        "adaptations": notes,
        "outputs": {},
        "auxiliary": {},
        "statistics": {name: statistics(value) for name, value in inputs.items() if hasattr(value, "shape")},
    }
