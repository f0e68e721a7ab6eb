"""Which workloads a pull takes: by definition, class, UUID and a budget of bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import definition_files, load_definition, read_definition
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.layout import BlobPath
from inference_kernels.core.records import CLASSES, read_captures, read_workloads, record_tensors


@dataclass(frozen=True)
class PullSelection:
    """Which workloads to pull; empty fields select everything. max_bytes: budget for what is fetched, or None."""

    definitions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    max_bytes: int | None = None

    def wants(self, need: "Need") -> bool:
        """Tell whether the fields select this workload; the budget is not asked."""
        return (
            (not self.definitions or need.definition in self.definitions)
            and (not self.classes or need.data_class in self.classes)
            and (not self.workloads or need.uuid in self.workloads)
        )


@dataclass(frozen=True)
class Need:
    """One workload and the paths of its stored inputs, outputs and auxiliary tensors."""

    uuid: str
    definition: str
    data_class: str
    paths: tuple[str, ...] = field(hash=False)


def needs(root: Path) -> list[Need]:
    """List every workload of the checkout by definition and UUID. Generated tensors are not pulled."""
    records = {record["workload"]: record for record in read_captures(root)}
    found = []
    for path in definition_files(root):
        definition = read_definition(path)
        found += [
            _need(path.stem, workload, records.get(workload["uuid"])) for workload in read_workloads(root, definition)
        ]
    return sorted(found, key=lambda need: (need.definition, need.uuid))


def _need(name: str, workload: dict[str, Any], record: dict[str, Any] | None) -> Need:
    paths = {item["path"] for item in workload["inputs"].values() if item["type"] == "safetensors"}
    paths |= set(record_tensors(record).values()) if record else set()
    for text in paths:
        BlobPath.parse(text, workload["uuid"])
    stored = tuple(sorted(text for text in paths if "/generated/" not in text))
    return Need(workload["uuid"], name, record["class"] if record else "unknown", stored)


def select(root: Path, selection: PullSelection, missing: Callable[[str], int]) -> list[Need]:
    """Choose the workloads to pull. SchemaError for a definition, class or UUID that does not exist.

    missing: bytes to fetch for a path, 0 if its content is here or its size unknown. A budget takes whole
    workloads, smallest first, definitions interleaved; a tensor counts once.
    """
    everything = needs(root)
    _check_names(root, selection, everything)
    wanted = [need for need in everything if selection.wants(need)]
    if selection.max_bytes is None:
        return wanted
    taken, paid, left = [], set(), selection.max_bytes
    for need in _interleaved(wanted, missing):
        new = {Path(text).stem: missing(text) for text in need.paths if Path(text).stem not in paid}
        if sum(new.values()) <= left:
            left -= sum(new.values())
            paid.update(new)
            taken.append(need)
    return taken


def _interleaved(wanted: list[Need], missing: Callable[[str], int]) -> Iterable[Need]:
    """Order workloads: the smallest of each definition, then the second smallest of each, ..."""
    queues: dict[str, list[tuple[int, str, Need]]] = {}
    for need in wanted:
        size = sum(missing(text) for text in need.paths)
        queues.setdefault(need.definition, []).append((size, need.uuid, need))
    rounds = zip_longest(*(sorted(queue, key=lambda item: item[:2]) for _, queue in sorted(queues.items())))
    return [item[2] for one in rounds for item in one if item]


def _check_names(root: Path, selection: PullSelection, everything: list[Need]) -> None:
    for name in selection.definitions:
        load_definition(root, name)
    for name in set(selection.classes) - set(CLASSES):
        raise SchemaError(
            expected=f"one of the classes {', '.join(CLASSES)}",
            found=name,
            where="--class",
            remedy="check the class's name",
        )
    for uuid in sorted(set(selection.workloads) - {need.uuid for need in everything}):
        raise SchemaError(
            expected="the UUID of a workload of this checkout",
            found=uuid,
            where="--workload",
            remedy="look it up in workloads/ or captures.jsonl",
        )
