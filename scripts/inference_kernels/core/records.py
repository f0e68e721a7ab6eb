"""Workload lines and capture records: identity, statistics, reading and writing."""

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.files import canonical_json, read_jsonl, write_jsonl
from inference_kernels.core.layout import TENSOR_KEY, BlobPath, workload_file
from inference_kernels.core.schema import schema_errors, workload_line_errors

if TYPE_CHECKING:
    import torch

CLASSES = ("published", "contest", "seeded")
# Workloads of the published dataset: the target that counts are shown against.
PUBLISHED_TARGET = 1104
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://huggingface.co/datasets/humanfia-lab/inference-kernels")


def workload_uuid(definition: str, inputs: dict[str, dict[str, Any]]) -> str:
    """UUIDv5 of the definition's name and the canonical JSON of its inputs.

    A tensor counts by its hash and key, not by the store it lies in, so a workload keeps its UUID when its
    tensors move from one store to another.
    """
    content = {}
    for name, item in inputs.items():
        if item["type"] == "safetensors":
            item = {"sha256": Path(item["path"]).stem, "tensor_key": item["tensor_key"], "type": "safetensors"}
        content[name] = item
    return str(uuid.uuid5(NAMESPACE, f"{definition}\n{canonical_json(content)}"))


def tensor_reference(path: str | BlobPath) -> dict[str, str]:
    return {"path": str(path), "tensor_key": TENSOR_KEY}


def workload_line(definition: str, workload: dict[str, Any]) -> dict[str, Any]:
    """A native Trace line that is a workload: no solution, no evaluation."""
    return {"definition": definition, "workload": workload, "solution": None, "evaluation": None}


def statistics(tensor: "torch.Tensor") -> dict[str, Any]:
    """Minimum and maximum of the finite elements, share of zeros, count of non-finite ones.

    Minimum and maximum are None if no element is finite; booleans count as 0 and 1.
    """
    count = tensor.numel()
    values = tensor.float() if tensor.dtype.is_floating_point else tensor.long()
    finite = values.isfinite() if tensor.dtype.is_floating_point else None
    broken = 0 if finite is None else count - int(finite.sum())
    kept = values if not broken else values[finite]
    low, high = (kept.min().item(), kept.max().item()) if kept.numel() else (None, None)
    zeros = int((values == 0).sum())
    return {"min": low, "max": high, "zero_share": zeros / count if count else 0.0, "non_finite": broken}


def captures_file(root: Path) -> Path:
    return root / "captures.jsonl"


def read_captures(root: Path) -> list[dict[str, Any]]:
    """All capture records; none if the file does not exist. SchemaError for the first broken one."""
    path = captures_file(root)
    rows = list(read_jsonl(path)) if path.exists() else []
    for number, row in rows:
        for error in schema_errors("capture_record", row, f"{path}:{number}"):
            raise error
    return [row for _, row in rows]


def read_workloads(root: Path, definition: dict) -> list[dict[str, Any]]:
    """The workloads (inner objects) of a definition; none if its file does not exist.

    SchemaError for the first line that is no workload of the definition.
    """
    path = workload_file(root, definition)
    rows = list(read_jsonl(path)) if path.exists() else []
    for number, row in rows:
        for error in workload_line_errors(row, definition, f"{path}:{number}"):
            raise error
    return [row["workload"] for _, row in rows]


def write_captures(root: Path, records: Iterable[dict[str, Any]]) -> None:
    write_jsonl(captures_file(root), sorted(records, key=lambda row: (row["definition"], row["workload"])))


def write_workloads(root: Path, definition: dict, workloads: Iterable[dict[str, Any]]) -> None:
    rows = [workload_line(definition["name"], workload) for workload in sorted(workloads, key=lambda w: w["uuid"])]
    write_jsonl(workload_file(root, definition), rows)


def record_tensors(record: dict[str, Any]) -> dict[str, str]:
    """Paths of the saved tensors of a record, by `outputs.<name>` or `auxiliary.<name>`."""
    return {
        f"{group}.{name}": item["path"] for group in ("outputs", "auxiliary") for name, item in record[group].items()
    }
