"""Replay results as table rows, lines and counts."""

from collections.abc import Iterable
from typing import Any

from .replay import Replayed

REPLAY_COLUMNS = [
    "definition",
    "class",
    "workloads",
    "passed",
    "skipped",
    "max abs error",
    "tolerance used",
    "relative rms",
]


def replay_rows(results: list[Replayed]) -> list[dict[str, Any]]:
    """One row for each definition and class: counts, and the worst figures over its outputs."""
    groups: dict[tuple[str, str], list[Replayed]] = {}
    for result in results:
        groups.setdefault((result.definition, result.data_class), []).append(result)
    return [_row(name, data_class, group) for (name, data_class), group in sorted(groups.items())]


def _row(name: str, data_class: str, group: list[Replayed]) -> dict[str, Any]:
    compared = [item for result in group for item in (result.comparisons or {}).values()]
    return {
        "definition": name,
        "class": data_class,
        "workloads": len(group),
        "passed": sum(result.status == "pass" for result in group),
        "skipped": sum(result.status == "skipped" for result in group),
        "max abs error": _worst((item.max_abs_error for item in compared), ".3g"),
        "tolerance used": _worst((item.tolerance_used for item in compared), ".1%"),
        "relative rms": _worst((item.relative_rms for item in compared), ".2%"),
    }


def _worst(values: Iterable[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(max(known), form) if known else "-"


def replay_troubles(results: list[Replayed]) -> list[str]:
    """One line for each workload that did not pass, with the reason."""
    return [
        f"{result.status} {result.definition} {result.workload}: {result.reason}"
        for result in results
        if result.status != "pass"
    ]


def replay_counts(results: list[Replayed]) -> dict[str, int]:
    """replayed: passed or failed the comparison; failed: also those whose reference could not be run."""
    return {
        "replayed": sum(result.status in ("pass", "fail") for result in results),
        "failed": sum(result.status in ("fail", "error") for result in results),
        "skipped": sum(result.status == "skipped" for result in results),
    }
