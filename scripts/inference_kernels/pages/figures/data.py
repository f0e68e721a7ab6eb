"""The data of the figures: counts by exact shape, tolerance used by output, ranges by input.

They come from definitions, workloads and capture records; no tensor file is opened.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inference_kernels.core.definitions import const_axes, definition_files, read_definition, tensor_inputs, var_axes
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.records import CLASSES, captures_by_definition, read_workloads
from inference_kernels.core.types import CaptureRecord, Definition, Statistics, Workload

# Values closer to zero lie on the linear middle part of a range axis.
NEAR_ZERO = 0.01
NO_WORKLOADS = "no workloads in this repository"


@dataclass(frozen=True)
class Combination:
    """One exact combination of the variable axes, and its workloads by class."""

    sizes: tuple[int, ...]
    counts: dict[str, int]

    @property
    def present(self) -> dict[str, int]:
        return {name: count for name, count in self.counts.items() if count}

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Histogram:
    definition: str
    axes: list[str]
    fixed: dict[str, int]
    combinations: list[Combination]

    @property
    def counts(self) -> dict[str, int]:
        """Workloads by class, for all classes."""
        return {name: sum(item.counts[name] for item in self.combinations) for name in CLASSES}


@dataclass(frozen=True)
class ErrorRow:
    """One output of a definition, over its workloads.

    used: by class, the tolerance that each workload's replay used (1.0 = at the limit).
    without_outputs: workloads without an engine output to compare with.
    unmeasured: replays without a figure.
    """

    output: str
    used: dict[str, list[float]]
    without_outputs: int
    unmeasured: int

    @property
    def note(self) -> str:
        """The reason why there is nothing to draw, in words; empty if there is something."""
        return "" if any(self.used.values()) else left_out([self]) or "no workloads"


@dataclass(frozen=True)
class RangeRow:
    """One tensor input in one class, over its workloads; low and high are None without finite elements."""

    tensor: str
    dtype: str
    data_class: str
    low: float | None
    high: float | None
    zero_shares: list[float]
    non_finite: int


@dataclass(frozen=True)
class DefinitionFigures:
    histogram: Histogram
    errors: list[ErrorRow]
    ranges: list[RangeRow]


def read_figures(root: Path) -> list[DefinitionFigures]:
    """Read the figures of every definition, in the order of their files."""
    records = captures_by_definition(root)
    definitions = map(read_definition, definition_files(root))
    return [_figures(root, definition, records.get(definition["name"], [])) for definition in definitions]


def _figures(root: Path, definition: Definition, records: list[CaptureRecord]) -> DefinitionFigures:
    return DefinitionFigures(
        histogram(definition, read_workloads(root, definition), records),
        error_rows(definition, records),
        range_rows(definition, records),
    )


def histogram(definition: Definition, workloads: list[Workload], records: list[CaptureRecord]) -> Histogram:
    """Count workloads by the exact sizes of the variable axes, smallest first, axis by axis.

    SchemaError for a workload without a capture record, which gives its class.
    """
    classes = {record["workload"]: record["class"] for record in records}
    axes = var_axes(definition)
    counts: dict[tuple[int, ...], Counter[str]] = {}
    for workload in workloads:
        data_class = classes.get(workload["uuid"])
        if data_class is None:
            raise SchemaError(
                expected="a record in captures.jsonl",
                found="none",
                where=workload["uuid"],
                remedy="run: python scripts/check_workload_inputs.py",
            )
        sizes = tuple(workload["axes"][axis] for axis in axes)
        counts.setdefault(sizes, Counter())[data_class] += 1
    combinations = [Combination(sizes, {name: counts[sizes][name] for name in CLASSES}) for sizes in sorted(counts)]
    return Histogram(definition["name"], axes, const_axes(definition), combinations)


def shape_table(shapes: Histogram) -> tuple[str, list[str]]:
    """Write a header and a label per combination, in columns of equal width for a monospaced font."""
    columns = [
        [axis, *(str(item.sizes[place]) for item in shapes.combinations)] for place, axis in enumerate(shapes.axes)
    ]
    widths = [max(map(len, column)) for column in columns]
    rows = ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths)) for cells in zip(*columns)]
    return (rows[0], rows[1:]) if rows else ("", [""] * len(shapes.combinations))


def summary(shapes: Histogram) -> str:
    """Count workloads and combinations, in words."""
    axes = ", ".join(shapes.axes) or "none"
    if not shapes.combinations:
        return f"variable axes: {axes}"
    workloads = _count(sum(shapes.counts.values()), "workload")
    combinations = _count(len(shapes.combinations), "exact combination")
    return f"{workloads} in {combinations} of the variable axes: {axes}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def class_totals(every: list[DefinitionFigures]) -> dict[str, int]:
    return {name: sum(item.histogram.counts[name] for item in every) for name in CLASSES}


def error_rows(definition: Definition, records: list[CaptureRecord]) -> list[ErrorRow]:
    """Collect a row per output; replays of workloads without engine outputs are counted and not drawn."""
    compared = [record for record in records if record["outputs"]]
    rows = []
    for output in definition["outputs"]:
        figures = [(record["class"], _used(record, output)) for record in compared]
        measured = [(data_class, value) for data_class, value in figures if value is not None]
        used = {name: sorted(value for data_class, value in measured if data_class == name) for name in CLASSES}
        rows.append(ErrorRow(output, used, len(records) - len(compared), len(figures) - len(measured)))
    return rows


def left_out(rows: list[ErrorRow]) -> str:
    """Count the replays of these rows without a tolerance used, by reason, in words; empty if there are none."""
    counts = {
        "without engine outputs": sum(row.without_outputs for row in rows),
        "not measured": sum(row.unmeasured for row in rows),
    }
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)


def _used(record: CaptureRecord, output: str) -> float | None:
    return record["replay"]["errors"].get(output, {}).get("tolerance_used")


def range_rows(definition: Definition, records: list[CaptureRecord]) -> list[RangeRow]:
    """Collect a row per tensor input and class with statistics; scalar inputs have none."""
    return [
        _range_row(tensor, spec["dtype"], data_class, found)
        for tensor, spec in tensor_inputs(definition)
        for data_class in CLASSES
        if (found := list(_statistics(records, tensor, data_class)))
    ]


def _statistics(records: list[CaptureRecord], tensor: str, data_class: str) -> Iterator[Statistics]:
    return (
        record["statistics"][tensor]
        for record in records
        if record["class"] == data_class and tensor in record["statistics"]
    )


def _range_row(tensor: str, dtype: str, data_class: str, found: list[Statistics]) -> RangeRow:
    low = min((item["min"] for item in found if item["min"] is not None), default=None)
    high = max((item["max"] for item in found if item["max"] is not None), default=None)
    return RangeRow(
        tensor,
        dtype,
        data_class,
        low,
        high,
        sorted(item["zero_share"] for item in found),
        sum(item["non_finite"] for item in found),
    )


def signed_log(value: float) -> float:
    """Count decades beyond NEAR_ZERO with the sign, linearly below: 0 -> 0, NEAR_ZERO -> 1, 10 * NEAR_ZERO -> 2."""
    size = abs(value) / NEAR_ZERO
    return math.copysign(size if size < 1 else 1 + math.log10(size), value)


def decades(values: list[float]) -> int:
    """Count the decades that a range axis needs on each side of zero, as in `signed_log`; at least 1."""
    return max([1, *(math.ceil(abs(signed_log(value))) for value in values)])
