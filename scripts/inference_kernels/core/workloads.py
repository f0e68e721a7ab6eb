"""The workloads of a definition that can be run in this checkout, and why the others cannot."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.core.layout import blob_path, pull_command, read_pointer
from inference_kernels.core.records import read_captures, read_workloads


@dataclass(frozen=True)
class Available:
    """One workload. `missing`: which input tensor is not here and what to do about it; empty if all are."""

    workload: dict[str, Any]
    data_class: str
    missing: str = ""

    @property
    def uuid(self) -> str:
        return self.workload["uuid"]


def data_classes(root: Path) -> dict[str, str]:
    """Class of each workload that has a capture record, by UUID."""
    return {record["workload"]: record["class"] for record in read_captures(root)}


def available_workloads(
    root: Path, definition: dict, classes: dict[str, str], only: tuple[str, ...] = ()
) -> list[Available]:
    """The definition's workloads (only those of the UUIDs `only`, if any), in file order.

    classes: from `data_classes`. PathError for a tensor path that leaves its definition's folder.
    """
    workloads = [item for item in read_workloads(root, definition) if not only or item["uuid"] in only]
    name = definition["name"]
    return [
        Available(item, classes.get(item["uuid"], "unknown"), missing_input(root, name, item)) for item in workloads
    ]


def missing_input(root: Path, definition: str, workload: dict) -> str:
    """The first input tensor that is not here, with the remedy; an empty string if none is missing."""
    texts = [item["path"] for item in workload["inputs"].values() if item["type"] == "safetensors"]
    return missing_tensor(root, definition, workload["uuid"], texts)


def missing_tensor(root: Path, definition: str, uuid: str, texts: Iterable[str]) -> str:
    """The first of the blob paths `texts` that is not here, with the remedy; an empty string if none is missing."""
    for text in texts:
        path = blob_path(root, text, definition, uuid)
        if not path.exists():
            command = f"python scripts/materialize_seeded.py --definition {definition} --all"
            return f"not materialised: {command}" if "/generated/" in text else f"missing: {text}"
        if read_pointer(path):
            return f"not fetched: {pull_command({definition})}"
    return ""
