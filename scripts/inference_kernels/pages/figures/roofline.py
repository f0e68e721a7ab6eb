"""The roofline of the measured baselines: the fastest solution of each definition under the device's measured peaks.

Operations and bytes are the lower bounds of the judge's floor (judge/floor.py), so a dot on the roof is a call that
takes the least possible time.
"""

import math
from dataclasses import dataclass
from typing import Any

from inference_kernels.pages.figures.canvas import INK, LINE, MARGIN, MUTED, RULE, SHADE, WIDTH, Canvas, heading, render

LEFT, RIGHT, TOP, HEIGHT = 70, WIDTH - MARGIN, 92, 330
COMPUTE, MEMORY = "#0072b2", "#d98200"
# Data that fills a GPU, where a definition has any; the committed workloads are deliberately small.
PREFERRED = ("large", "starter")


# Decades of the two axes: operations per byte, operations per second.
Sides = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Point:
    """A workload of a definition's fastest solution: operations per byte and per second, share of the roof."""

    intensity: float
    rate: float
    share: float


@dataclass(frozen=True)
class RoofEntry:
    """A definition's fastest solution, the kind of data, and its points: none for workloads without operations."""

    definition: str
    solution: str
    data: str
    share: float
    points: list[Point]


def roofline_entries(rows: list[dict[str, Any]]) -> list[RoofEntry]:
    """Find the fastest solution that passes every workload, for each definition; sorted by share of the roof."""
    entries = []
    for definition in sorted({row["definition"] for row in rows}):
        for data in PREFERRED:
            complete = [
                row
                for row in rows
                if (row["definition"], row["data"]) == (definition, data)
                and row["passed"] == row["workloads"]
                and row["geomean_us"]
            ]
            if complete:
                entries.append(_entry(min(complete, key=lambda row: row["geomean_us"])))
                break
    return sorted(entries, key=lambda entry: -entry.share)


def _entry(row: dict[str, Any]) -> RoofEntry:
    points = [
        Point(case["operations"] / case["bytes"], case["operations"] / case["us"] * 1e6, case["floor_us"] / case["us"])
        for case in row["cases"]
        if case["operations"]
    ]
    return RoofEntry(row["definition"], row["solution"], row["data"], 1 / row["floor_ratio"], points)


def roofline_figure(rows: list[dict[str, Any]]) -> bytes:
    """Draw the roofline; `rows` are those of the committed summary, all of one device."""
    entries, peaks = roofline_entries(rows), rows[0]["peaks"]
    points = [point for entry in entries for point in entry.points]
    sides = (
        _side([point.intensity for point in points] + [peaks["bf16_flops"] / peaks["bytes_per_second"]]),
        _side([point.rate for point in points] + [peaks["bf16_flops"], peaks["fp8_flops"]]),
    )
    height = TOP + HEIGHT + 64 + LINE * len(entries) + 16

    def draw(canvas: Canvas) -> None:
        heading(
            canvas,
            f"Roofline of the fastest passing solutions, {rows[0]['device']}",
            [
                f"Measured peaks: {peaks['bytes_per_second'] / 1e12:.2f} TB/s (copy, read and written), "
                f"{peaks['bf16_flops'] / 1e12:.0f} TFLOP/s (BF16 product).",
                "One dot per workload. Blue: operations bound the least time; orange: bytes do.",
            ],
        )
        _grid(canvas, sides)
        _roof(canvas, sides, peaks)
        for number, entry in enumerate(entries, 1):
            _dots(canvas, sides, number, entry, peaks)
        _key(canvas, entries, TOP + HEIGHT + 64)

    return render("Roofline of the baselines", height, draw)


def _side(values: list[float]) -> tuple[int, int]:
    """Find the decades that enclose all values."""
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 0.05)


def _x(intensity: float, side: tuple[int, int]) -> float:
    return LEFT + (RIGHT - LEFT) * (math.log10(intensity) - side[0]) / (side[1] - side[0])


def _y(rate: float, side: tuple[int, int]) -> float:
    return TOP + HEIGHT * (side[1] - math.log10(rate)) / (side[1] - side[0])


def _grid(canvas: Canvas, sides: Sides) -> None:
    across, up = sides
    canvas.box(LEFT, TOP, RIGHT - LEFT, HEIGHT, SHADE)
    for power in range(across[0], across[1] + 1):
        x = _x(10.0**power, across)
        canvas.line([x, x], [TOP, TOP + HEIGHT])
        canvas.text(x, TOP + HEIGHT + 16, f"{10.0**power:g}", 11, colour=MUTED, align="center")
    for power in range(up[0], up[1] + 1):
        y = _y(10.0**power, up)
        canvas.line([LEFT, RIGHT], [y, y])
        canvas.text(LEFT - 8, y + 4, f"{10.0 ** (power - 12):g}", 11, colour=MUTED, align="right")
    canvas.text((LEFT + RIGHT) / 2, TOP + HEIGHT + 34, "operations per byte", colour=MUTED, align="center")
    canvas.text(MARGIN, TOP - 8, "TFLOP/s", 11, colour=MUTED)


def _roof(canvas: Canvas, sides: Sides, peaks: dict[str, float]) -> None:
    """Draw the slope of the bandwidth and the peaks: BF16 in ink, FP8 as a thin line."""
    across, up = sides
    low, high = 10.0 ** across[0], 10.0 ** across[1]
    for flops, colour, width in ((peaks["fp8_flops"], RULE, 1.5), (peaks["bf16_flops"], INK, 2)):
        ridge = flops / peaks["bytes_per_second"]
        start = max(low, 10.0 ** up[0] / peaks["bytes_per_second"])
        canvas.line(
            [_x(start, across), _x(ridge, across), RIGHT],
            [_y(start * peaks["bytes_per_second"], up), _y(flops, up), _y(flops, up)],
            colour,
            width,
        )
    canvas.text(_x(high, across) - 6, _y(peaks["bf16_flops"], up) + 14, "BF16 peak", 11, align="right")


def _dots(canvas: Canvas, sides: Sides, number: int, entry: RoofEntry, peaks: dict[str, float]) -> None:
    ridge = peaks["bf16_flops"] / peaks["bytes_per_second"]
    for point in entry.points:
        x, y = _x(point.intensity, sides[0]), _y(point.rate, sides[1])
        canvas.dots([x], y, COMPUTE if point.intensity > ridge else MEMORY)
    if entry.points:
        canvas.text(x + 7, y + 4, str(number), 11)


def _key(canvas: Canvas, entries: list[RoofEntry], top: float) -> None:
    """List number, name, solution and share of the roof of every definition, also of those without dots."""
    for number, entry in enumerate(entries, 1):
        y = top + LINE * number - 4
        label = str(number) if entry.points else "-"
        kind = entry.solution.removesuffix(entry.definition).rstrip("_") or entry.solution
        canvas.text(MARGIN + 18, y, label, 11.5, "bold", align="right")
        canvas.text(MARGIN + 28, y, entry.definition, 11.5)
        canvas.text(MARGIN + 400, y, kind, 11.5, colour=MUTED)
        canvas.text(RIGHT - 60, y, entry.data, 11.5, colour=MUTED, align="right")
        canvas.text(RIGHT, y, f"{entry.share:.0%}", 11.5, align="right")
    canvas.text(RIGHT, top - 4, "share of the roof", 11, colour=MUTED, align="right")
