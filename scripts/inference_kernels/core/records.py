"""Workload lines and capture records: identity, statistics, reading and writing."""

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from inference_kernels.core.files import canonical_json, read_jsonl, write_jsonl
from inference_kernels.core.layout import TENSOR_KEY, BlobPath, workload_file
from inference_kernels.core.schema import schema_errors, workload_line_errors
from inference_kernels.core.types import (
    CaptureRecord,
    Definition,
    Statistics,
    TensorReference,
    Workload,
    WorkloadInput,
    WorkloadLine,
)

if TYPE_CHECKING:
    import torch

CLASSES = ("published", "contest", "seeded")
# Workloads of the published dataset: counts are shown against this target.
PUBLISHED_TARGET = 1104
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://huggingface.co/datasets/humanfia-lab/inference-kernels")


def workload_uuid(definition: str, inputs: dict[str, WorkloadInput]) -> str:
    """Derive the UUIDv5 from the definition's name and the canonical JSON of the inputs.

    A tensor counts by its hash and key, not by the store it lies in, so a workload keeps its UUID when its
    tensors move from one store to another.
    """
    content: dict[str, Any] = {}
    for name, item in inputs.items():
        content[name] = item
        if item["type"] == "safetensors":
            digest = Path(item["path"]).stem
            content[name] = {"sha256": digest, "tensor_key": item["tensor_key"], "type": "safetensors"}
    return str(uuid.uuid5(NAMESPACE, f"{definition}\n{canonical_json(content)}"))


def tensor_reference(path: str | BlobPath) -> TensorReference:
    """Refer to the tensor of a blob as capture records do."""
    return {"path": str(path), "tensor_key": TENSOR_KEY}


def workload_line(definition: str, workload: Workload) -> WorkloadLine:
    """Wrap a workload as a native Trace line without solution and evaluation."""
    return {"definition": definition, "workload": workload, "solution": None, "evaluation": None}


def statistics(tensor: "torch.Tensor") -> Statistics:
    """Measure the minimum and maximum of the finite elements, the share of zeros, the count of non-finite elements.

    Minimum and maximum are None if no element is finite; booleans count as 0 and 1.
    """
    count = tensor.numel()
    values = tensor.float() if tensor.dtype.is_floating_point else tensor.long()
    finite = values.isfinite() if tensor.dtype.is_floating_point else None
    broken = 0 if finite is None else count - int(finite.sum())
    kept = values[finite] if broken else values
    low, high = (kept.min().item(), kept.max().item()) if kept.numel() else (None, None)
    zeros = int((values == 0).sum())
    return {"min": low, "max": high, "zero_share": zeros / count if count else 0.0, "non_finite": broken}


def captures_file(root: Path) -> Path:
    return root / "captures.jsonl"


def read_captures(root: Path) -> list[CaptureRecord]:
    """Read all capture records; none if the file does not exist. SchemaError for the first broken one."""
    path = captures_file(root)
    rows = list(read_jsonl(path)) if path.exists() else []
    for number, row in rows:
        for error in schema_errors("capture_record", row, f"{path}:{number}"):
            raise error
    return cast(list[CaptureRecord], [row for _, row in rows])


def captures_by_definition(root: Path) -> dict[str, list[CaptureRecord]]:
    """Read all capture records, grouped by definition, in file order."""
    groups: dict[str, list[CaptureRecord]] = {}
    for record in read_captures(root):
        groups.setdefault(record["definition"], []).append(record)
    return groups


def read_workloads(root: Path, definition: Definition) -> list[Workload]:
    """Read the workloads (inner objects) of a definition; none if its file does not exist.

    SchemaError for the first line that is no workload of the definition.
    """
    path = workload_file(root, definition)
    rows = list(read_jsonl(path)) if path.exists() else []
    for number, row in rows:
        for error in workload_line_errors(row, definition, f"{path}:{number}"):
            raise error
    return [row["workload"] for _, row in rows]


def write_captures(root: Path, records: Iterable[CaptureRecord]) -> None:
    write_jsonl(captures_file(root), sorted(records, key=lambda row: (row["definition"], row["workload"])))


def write_workloads(root: Path, definition: Definition, workloads: Iterable[Workload]) -> None:
    rows = [workload_line(definition["name"], workload) for workload in sorted(workloads, key=lambda w: w["uuid"])]
    write_jsonl(workload_file(root, definition), rows)


def saved_tensors(record: CaptureRecord) -> Iterator[tuple[str, TensorReference]]:
    """Iterate over a record's saved tensors, by `outputs.<name>` and `auxiliary.<name>`."""
    yield from ((f"outputs.{name}", item) for name, item in record["outputs"].items())
    yield from ((f"auxiliary.{name}", item) for name, item in record["auxiliary"].items())


def record_tensors(record: CaptureRecord) -> dict[str, str]:
    """List the paths of a record's saved tensors, by `outputs.<name>` and `auxiliary.<name>`."""
    return {label: item["path"] for label, item in saved_tensors(record)}
