"""All figures of docs/figures: shapes of each definition, tolerance used by outputs, ranges of inputs, roofline."""

from pathlib import Path

from inference_kernels.core.errors import PackError, SchemaError
from inference_kernels.core.files import write_bytes
from inference_kernels.pages.baselines import read_rows
from inference_kernels.pages.figures.data import read_figures
from inference_kernels.pages.figures.ranges import ranges_figure
from inference_kernels.pages.figures.roofline import roofline_figure
from inference_kernels.pages.figures.shapes_and_errors import errors_figure, shapes_figure

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
    changed = _different(figures)
    for path in changed:
        write_bytes(path, figures[path])
    stale = _stale(output, figures) if name is None else []
    for path in stale:
        path.unlink()
    return changed + stale


def figure_differences(root: Path, output: Path, name: str | None = None) -> list[PackError]:
    """Report each figure that differs from its drawing, and each of an unknown definition."""
    figures = expected_figures(root, output, name)
    wrong = _different(figures) + (_stale(output, figures) if name is None else [])
    return [
        PackError(
            expected="the generated figure",
            found="a difference" if path.exists() else "no file",
            where=str(path),
            remedy=REMEDY,
        )
        for path in wrong
    ]


def _different(figures: dict[Path, bytes]) -> list[Path]:
    return [path for path, content in figures.items() if not path.exists() or path.read_bytes() != content]


def _stale(output: Path, figures: dict[Path, bytes]) -> list[Path]:
    return sorted(set((output / SHAPES).glob("*.svg")) - set(figures))
