"""All figures of docs/figures: shapes of each definition, tolerance used by outputs, ranges of inputs, roofline."""

from pathlib import Path

from inference_kernels.core.errors import PackError, SchemaError
from inference_kernels.pages.baselines import read_rows
from inference_kernels.pages.figures.data import read_figures
from inference_kernels.pages.figures.ranges import ranges_figure
from inference_kernels.pages.figures.roofline import roofline_figure
from inference_kernels.pages.figures.shapes_and_errors import errors_figure, shapes_figure
from inference_kernels.pages.generated import differences, write_generated

REMEDY = "run: python scripts/plot_shape_distributions.py"
SHAPES, ERRORS, STATISTICS, ROOFLINE = "shapes", "errors.svg", "tensor_statistics.svg", "roofline.svg"


def expected_figures(root: Path, output: Path, name: str | None = None) -> dict[Path, bytes]:
    """Draw every figure: path -> SVG bytes; with `name` only the shapes of that definition."""
    every = read_figures(root)
    chosen = [item for item in every if name in (None, item.histogram.definition)]
    if name and not chosen:
        known = ", ".join(item.histogram.definition for item in every) or "none"
        raise SchemaError(
            expected=f"one of: {known}",
            found=name,
            where=str(root / "definitions"),
            remedy="check the definition's name",
        )
    figures = {output / SHAPES / f"{item.histogram.definition}.svg": shapes_figure(item.histogram) for item in chosen}
    if name is None:
        figures |= {output / ERRORS: errors_figure(every), output / STATISTICS: ranges_figure(every)}
        measured = read_rows(root)
        figures |= {output / ROOFLINE: roofline_figure(measured)} if measured else {}
    return figures


def write_figures(root: Path, output: Path, name: str | None = None) -> list[Path]:
    """Write the figures that differ, delete shapes of unknown definitions; return the changed paths."""
    figures = expected_figures(root, output, name)
    return write_generated(figures, _stale(output, figures, name))


def figure_differences(root: Path, output: Path, name: str | None = None) -> list[PackError]:
    """Report each figure that differs from its drawing, and each of an unknown definition."""
    figures = expected_figures(root, output, name)
    return differences(figures, root, REMEDY, _stale(output, figures, name))


def _stale(output: Path, figures: dict[Path, bytes], name: str | None) -> list[Path]:
    return [] if name else sorted(set((output / SHAPES).glob("*.svg")) - set(figures))
