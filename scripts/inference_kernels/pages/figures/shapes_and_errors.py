"""Two kinds of figures: `shapes_figure`, workloads by exact shape; `errors_figure`, the tolerance that outputs use."""

import textwrap

from inference_kernels.pages.figures.canvas import (
    CLASS_COLOURS,
    INK,
    LINE,
    MARGIN,
    MONO_ADVANCE,
    MUTED,
    SHADE,
    WIDTH,
    Canvas,
    heading,
    legend,
    render,
    scale,
    stripes,
)
from inference_kernels.pages.figures.data import (
    NO_WORKLOADS,
    DefinitionFigures,
    ErrorRow,
    Histogram,
    class_totals,
    left_out,
    shape_table,
    summary,
)

ROW, RIGHT = 20, WIDTH - MARGIN
# Largest width of one workload, so that a single one never looks like many.
UNIT = 60
# Characters of the plain font that always fit between the margins.
WRAP = 112
FOOTNOTE = "Counts of this repository's workloads; how often a shape occurs in traffic is not shown."
ERRORS_NOTES = [
    "One dot per workload: the reference replayed on the captured inputs against the engine's saved output.",
    "Shown is the largest error of all elements as a share of its bound; integers must be equal (0 %).",
]


def shapes_figure(shapes: Histogram) -> bytes:
    """Draw a bar per exact combination of the variable axes, below the fixed dimensions."""
    fixed = ", ".join(f"{axis} = {size:,}" for axis, size in shapes.fixed.items()) or "none"
    above = [*textwrap.wrap(f"fixed dimensions: {fixed}", WRAP, break_on_hyphens=False), summary(shapes)]
    top = 54 + LINE * len(above)
    height = top + 60 + ROW * max(len(shapes.combinations), 2) + 44

    def draw(canvas: Canvas) -> None:
        heading(canvas, shapes.definition, above)
        legend(canvas, top + 8, shapes.counts)
        if shapes.combinations:
            _bars(canvas, shapes, top + 52)
        else:
            canvas.box(MARGIN, top + 30, RIGHT - MARGIN, 60, SHADE)
            canvas.text(WIDTH / 2, top + 65, NO_WORKLOADS, 14, colour=MUTED, align="center")
        canvas.text(MARGIN, height - 14, FOOTNOTE, 11, colour=MUTED)

    return render(f"Shapes of {shapes.definition}", height, draw)


def _bars(canvas: Canvas, shapes: Histogram, top: float) -> None:
    """Draw a table of the combinations with a stacked bar beside each row; `top` is the baseline of its header."""
    header, labels = shape_table(shapes)
    size = min(12, 520 / (MONO_ADVANCE * max(len(header), 1)))
    start = MARGIN + MONO_ADVANCE * size * len(header) + 20
    unit = min(UNIT, (RIGHT - 40 - start) / max(item.total for item in shapes.combinations))
    bottom = top + 8 + ROW * len(labels)
    canvas.text(MARGIN, top, header, size, "mono", MUTED)
    canvas.text(start, top, "workloads", 12, colour=MUTED)
    canvas.line([MARGIN, RIGHT], [top + 6, top + 6])
    for number, (label, item) in enumerate(zip(labels, shapes.combinations)):
        y = top + 8 + ROW * number
        canvas.text(MARGIN, y + 14, label, size, "mono")
        x = start
        for name, count in item.present.items():
            canvas.box(x, y + 3, unit * count, ROW - 6, CLASS_COLOURS[name])
            x += unit * count
        canvas.text(x + 6, y + 14, f"{item.total:,}")
    canvas.line([start, start], [top + 6, bottom], MUTED)


def errors_figure(every: list[DefinitionFigures]) -> bytes:
    """Draw a dot per workload: its largest error as a share of the bound that the task allows there."""
    rows = [(item.histogram, row) for item in every for row in item.errors]
    worst = max([1.0, *(value for _, row in rows for values in row.used.values() for value in values)])
    missing = left_out([row for _, row in rows])
    notes = ERRORS_NOTES + ([f"Left out, over all outputs: {missing}."] if missing else [])
    top, start = 106 + LINE * len(notes), 440
    unit = (RIGHT - 20 - start) / worst
    bottom = top + ROW * len(rows)

    def draw(canvas: Canvas) -> None:
        heading(canvas, "How much of its tolerance each output uses", notes)
        legend(canvas, top - 42, class_totals(every))
        stripes(canvas, [shapes.definition for shapes, _ in rows], top, ROW)
        marks = {start + unit * share: f"{share:.0%}" for share in (0, 0.25, 0.5, 0.75, 1)}
        scale(canvas, marks, top, bottom)
        canvas.line([start + unit] * 2, [top, bottom], INK, 1.5)
        for number, (shapes, row) in enumerate(rows):
            first = number == 0 or rows[number - 1][0] is not shapes
            _error_row(canvas, shapes if first else None, row, top + ROW * number, start, unit)

    return render("Tolerance used by each output", bottom + 16, draw)


def _error_row(canvas: Canvas, shapes: Histogram | None, row: ErrorRow, y: float, start: float, unit: float) -> None:
    if shapes:
        canvas.text(MARGIN, y + 14, shapes.definition, 11.5)
    canvas.text(start - 18, y + 14, row.output, 11.5, "mono", align="right")
    present = [name for name, values in row.used.items() if values]
    for number, name in enumerate(present):
        middle = y + ROW / 2 + 5 * (number - (len(present) - 1) / 2)
        canvas.dots([start + unit * value for value in row.used[name]], middle, CLASS_COLOURS[name])
    canvas.text(start + 8, y + 14, row.note, 11, colour=MUTED)
