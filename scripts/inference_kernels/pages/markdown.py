"""Markdown shared by the generated documents."""

from collections.abc import Iterable
from typing import Any


def table(header: list[str], rows: Iterable[Iterable[Any]]) -> str:
    """Write a table; `|` inside cells is escaped."""

    def line(cells: Iterable[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(header), "|" + " --- |" * len(header), *map(line, rows)])
