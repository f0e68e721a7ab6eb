"""The figure of the inputs: smallest and largest element and share of zeros, by input and class."""

from dataclasses import dataclass

from inference_kernels.pages.figures.canvas import (
    CLASS_COLOURS,
    LINE,
    MARGIN,
    MUTED,
    Canvas,
    heading,
    legend,
    render,
    scale,
    stripes,
)
from inference_kernels.pages.figures.data import (
    NEAR_ZERO,
    NO_WORKLOADS,
    DefinitionFigures,
    RangeRow,
    class_totals,
    decades,
    signed_log,
)

TOP = 142
# Right edges of the columns of numbers; left edges and widths of the two plots.
MINIMUM, MAXIMUM = 258, 324
RANGE, RANGE_WIDTH = 362, 290
ZEROS, ZEROS_WIDTH = 690, 112


@dataclass(frozen=True)
class RangeEntry:
    """One line of the figure: a definition's name, or one of its inputs."""

    definition: str
    row: RangeRow | None
    empty: bool = False


def ranges_figure(every: list[DefinitionFigures]) -> bytes:
    """Draw each tensor input's range and shares of zeros, by class."""
    entries = range_entries(every)
    rows = [entry.row for entry in entries if entry.row]
    side = decades([value for row in rows for value in (row.low, row.high) if value is not None])
    bottom = TOP + LINE * len(entries)

    def draw(canvas: Canvas) -> None:
        heading(
            canvas,
            "Smallest and largest element and share of zeros of each input",
            [
                f"Over all workloads of a class; non-finite elements: {sum(row.non_finite for row in rows):,}; "
                + f"axis logarithmic on both sides of zero, linear within ±{NEAR_ZERO:g}.",
                "Packed codes and scales count as the integers they are stored as; scalar inputs are not shown.",
            ],
        )
        legend(canvas, 98, class_totals(every))
        stripes(canvas, [entry.definition for entry in entries], TOP, LINE)
        _scales(canvas, side, bottom)
        for number, entry in enumerate(entries):
            y = TOP + LINE * number
            if entry.row:
                _input(canvas, entry.row, y, side)
            else:
                note = f": {NO_WORKLOADS}" if entry.empty else ""
                canvas.text(MARGIN, y + 13, entry.definition + note, 11.5, "plain" if entry.empty else "bold")

    return render("Ranges and zeros of each input", bottom + 16, draw)


def range_entries(every: list[DefinitionFigures]) -> list[RangeEntry]:
    entries = []
    for item in every:
        name = item.histogram.definition
        entries += [RangeEntry(name, None, not item.ranges), *(RangeEntry(name, row) for row in item.ranges)]
    return entries


def range_marks(side: int) -> dict[int, str]:
    """Label a range axis with `side` decades each way: zero, the outermost decade and every second one inwards."""
    powers = range(side, 0, -2)
    return {0: "0"} | {
        sign * power: f"{sign * NEAR_ZERO * 10 ** (power - 1):g}" for power in powers for sign in (-1, 1)
    }


def number_text(value: float | None) -> str:
    """Format integers whole, other numbers with four digits."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _place(value: float, side: int) -> float:
    return RANGE + RANGE_WIDTH * (side + signed_log(value)) / (2 * side)


def _scales(canvas: Canvas, side: int, bottom: float) -> None:
    unit = RANGE_WIDTH / (2 * side)
    marks = {RANGE + unit * (side + place): label for place, label in range_marks(side).items()}
    scale(canvas, marks, TOP, bottom)
    scale(canvas, {ZEROS + ZEROS_WIDTH * share: f"{share:.0%}" for share in (0, 0.5, 1)}, TOP, bottom)
    for x, y, label, align in (
        (MINIMUM, 6, "min", "right"),
        (MAXIMUM, 6, "max", "right"),
        (RANGE + RANGE_WIDTH / 2, 22, "from min to max", "center"),
        (ZEROS + ZEROS_WIDTH / 2, 22, "zeros in a workload", "center"),
    ):
        canvas.text(x, TOP - y, label, 11.5, colour=MUTED, align=align)


def _input(canvas: Canvas, row: RangeRow, y: float, side: int) -> None:
    """Draw name, dtype, numbers, a bar from the smallest to the largest element, and a dot per share of zeros."""
    colour, middle = CLASS_COLOURS[row.data_class], y + LINE / 2
    canvas.text(MARGIN + 12, y + 13, row.tensor, 11, "mono")
    canvas.text(MARGIN + 122, y + 13, row.dtype, 11, colour=MUTED)
    for x, value in ((MINIMUM, row.low), (MAXIMUM, row.high)):
        canvas.text(x, y + 13, number_text(value), 11, align="right")
    if row.low is not None and row.high is not None:
        low, high = _place(row.low, side), _place(row.high, side)
        canvas.box(low - 1.5, middle - 3, high - low + 3, 6, colour)
    canvas.dots([ZEROS + ZEROS_WIDTH * share for share in sorted(set(row.zero_shares))], middle, colour)
