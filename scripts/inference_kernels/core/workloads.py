"""The workloads of a definition that can be run in this checkout, and why the others cannot."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inference_kernels.core.layout import blob_path, pull_command, read_pointer
from inference_kernels.core.records import read_captures, read_workloads
from inference_kernels.core.types import Definition, Workload


@dataclass(frozen=True)
class Available:
    """One workload; `missing` names the first absent input tensor and the remedy, empty if all are here."""

    workload: Workload
    data_class: str
    missing: str = ""

    @property
    def uuid(self) -> str:
        return self.workload["uuid"]


def data_classes(root: Path) -> dict[str, str]:
    """Map the UUID of each workload that has a capture record to its class."""
    return {record["workload"]: record["class"] for record in read_captures(root)}


def available_workloads(
    root: Path, definition: Definition, classes: dict[str, str], only: tuple[str, ...] = ()
) -> list[Available]:
    """List the definition's workloads (only those of the UUIDs `only`, if any), in file order.

    classes: from `data_classes`. PathError for a tensor path that leaves its definition's folder.
    """
    workloads = [item for item in read_workloads(root, definition) if not only or item["uuid"] in only]
    name = definition["name"]
    return [
        Available(item, classes.get(item["uuid"], "unknown"), missing_input(root, name, item)) for item in workloads
    ]


def missing_input(root: Path, definition: str, workload: Workload) -> str:
    """Name the first input tensor that is not here, with the remedy; empty if all are here."""
    texts = [item["path"] for item in workload["inputs"].values() if item["type"] == "safetensors"]
    return missing_tensor(root, definition, workload["uuid"], texts)


def missing_tensor(root: Path, definition: str, uuid: str, texts: Iterable[str]) -> str:
    """Name the first of the blob paths `texts` that is not here, with the remedy; empty if all are here."""
    for text in texts:
        path = blob_path(root, text, definition, uuid)
        if not path.exists():
            command = f"python scripts/materialize_seeded.py --definition {definition} --all"
            return f"not materialised: {command}" if "/generated/" in text else f"missing: {text}"
        if read_pointer(path):
            return f"not fetched: {pull_command({definition})}"
    return ""
