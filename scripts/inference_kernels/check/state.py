"""The state of one check of a dataset: what was read and found, and how a step reports into it."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import DatasetError
from inference_kernels.core.findings import Findings
from inference_kernels.core.layout import BlobPath
from inference_kernels.core.schema import native_errors, unknown_keys
from inference_kernels.core.types import Definition, Workload

# Wraps an iterable of known length in a progress bar with a label.
Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]
# Shape and dtype of a tensor.
Form = tuple[tuple[int, ...], str]


@dataclass
class Blobs:
    """What records expect of blobs, by path as (label, form, where), and what was found there."""

    expected: dict[str, list[tuple[str, Form | None, str]]] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    pointers: dict[str, int] = field(default_factory=dict)
    absent_generated: set[str] = field(default_factory=set)
    recipes: set[str] = field(default_factory=set)
    mentioned: set[str] = field(default_factory=set)

    def expect(self, blob: BlobPath, label: str, form: Form | None, where: str) -> None:
        self.expected.setdefault(str(blob), []).append((label, form, where))

    def mention(self, line: str) -> None:
        """Note every hash in a broken record's text, so that its files do not count as unreferenced."""
        self.mentioned.update(re.findall("[0-9a-f]{64}", line))

    def sound(self, text: str) -> bool:
        """Tell whether the file is here with the right header and hash."""
        return self.found.get(text) == "sound"

    def figures(self) -> dict[str, int]:
        """Count paths and bytes; content at several paths counts once in the unique figures."""
        unique = {Path(text).stem: size for text, size in self.sizes.items()}
        return {
            "paths": len(self.sizes),
            "bytes": sum(self.sizes.values()),
            "unique": len(unique),
            "unique_bytes": sum(unique.values()),
            "pointers": len(self.pointers),
            "not_materialised": len(self.absent_generated),
        }


@dataclass
class Checked:
    """The state of one check of `root`, or with `only` of one definition.

    broken: names of definitions and UUIDs of workloads that cannot be read; what belongs to them is not judged.
    workloads: (definition, workload, where) by UUID.
    records: class of each workload with a record; the records themselves would take most of the memory.
    """

    root: Path
    only: str | None = None
    findings: Findings = field(default_factory=Findings)
    definitions: dict[str, Definition] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    workloads: dict[str, tuple[str, Workload, str]] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    blobs: Blobs = field(default_factory=Blobs)

    def wanted(self, definition: str) -> bool:
        return definition not in self.broken and self.only in (None, definition)

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def guard(state: Checked, step: Callable[[], Any]) -> Any:
    """Run one step and return its result; a DatasetError becomes a finding, and the result None."""
    try:
        return step()
    except DatasetError as error:
        report_error(state, error)
        return None


def report_error(state: Checked, error: DatasetError) -> None:
    """Add an error as a finding, its place relative to the root."""
    where = error.where.removeprefix(f"{state.root}/")
    state.findings.error(where, error.expected, error.found, error.remedy)


def native_fits(state: Checked, kind: str, value: Any, where: str) -> bool:
    """Report unknown keys and violations of the native schema; True without violations."""
    if not isinstance(value, dict):
        state.findings.error(where, f"a {kind} object", type(value).__name__, "restore the file")
        return False
    for error in unknown_keys(kind, value, where):
        state.findings.add_error(error)
    problems = native_errors(kind, value, where)
    for error in problems:
        state.findings.add_error(error)
    return not problems
