"""The state that one check of a dataset fills: what was read, what was found."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import DatasetError
from inference_kernels.core.findings import Findings
from inference_kernels.core.layout import BlobPath

Progress = Callable[[Iterable, int, str], Iterator]


Form = tuple[tuple[int, ...], str]


@dataclass
class Blobs:
    """What the records expect of blobs, and what was found."""

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
        """Note every hash in the text of a broken record, so that its files are not called unreferenced."""
        self.mentioned.update(re.findall("[0-9a-f]{64}", line))

    def sound(self, text: str) -> bool:
        """True if the file is here and header and hash were right."""
        return self.found.get(text) == "sound"

    def figures(self) -> dict[str, int]:
        """Paths and bytes; a content at several paths counts once in the unique figures."""
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
    """State of one check of `root`. `only` restricts it to one definition.

    broken: names of definitions and UUIDs of workloads that cannot be read; what belongs to them is left alone.
    records: class of each workload with a record; the records themselves are not kept, they are the bulk of memory.
    """

    root: Path
    only: str | None = None
    findings: Findings = field(default_factory=Findings)
    definitions: dict[str, dict] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    workloads: dict[str, tuple[str, dict, str]] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    blobs: Blobs = field(default_factory=Blobs)

    def wanted(self, definition: str) -> bool:
        return definition not in self.broken and self.only in (None, definition)

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def guard(state: Checked, step: Callable[[], Any]) -> Any:
    """Run one step; a DatasetError becomes a finding."""
    try:
        return step()
    except DatasetError as error:
        report_error(state, error)
        return None


def report_error(state: Checked, error: DatasetError) -> None:
    """Add an error as a finding, its place relative to the root."""
    where = error.where.removeprefix(f"{state.root}/")
    state.findings.add("error", where, error.expected, error.found, error.remedy)
