"""Findings of a check: collected, never raised, printed one per line."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from inference_kernels.core.errors import DatasetError

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """level: error (the data is wrong), warning (look at it), note (expected in a partial checkout)."""

    level: Level
    where: str
    expected: str
    found: str
    remedy: str

    def line(self) -> str:
        return f"{self.level} {self.where}: expected {self.expected}; found {self.found}; {self.remedy}"


@dataclass
class Findings:
    """A list of findings; `add_error` turns the library's exceptions into findings."""

    items: list[Finding] = field(default_factory=list)

    def add(self, level: Level, where: str, expected: str, found: str, remedy: str) -> None:
        self.items.append(Finding(level, str(where), expected, found, remedy))

    def error(self, where: str, expected: str, found: str, remedy: str) -> None:
        self.add("error", where, expected, found, remedy)

    def add_error(self, error: DatasetError) -> None:
        self.error(error.where, error.expected, error.found, error.remedy)

    def count(self, level: Level) -> int:
        return sum(item.level == level for item in self.items)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(item) for item in self.items]
