"""A page measured in CSS pixels that Matplotlib draws to the same SVG bytes every time.

The bytes depend on the Matplotlib of requirements/plot.txt. Everything else that could differ is fixed here:
no date, a constant salt for ids, the default style, Matplotlib's own fonts, and texts written as outlines.
"""

import io
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from inference_kernels.core.errors import EnvironmentMissing, missing_package

MATPLOTLIB = "3.11.2"
INSTALL = "python -m pip install --require-hashes -r requirements/plot.txt (the extra `plot`)"
WIDTH, MARGIN, LINE = 840, 20, 18
# Sizes are in CSS pixels, 96 per inch; Matplotlib's points are 72 per inch.
PIXELS, POINTS = 96, 0.75
FONTS = {"plain": "DejaVuSans.ttf", "bold": "DejaVuSans-Bold.ttf", "mono": "DejaVuSansMono.ttf"}
# Width of every character of the monospaced font, as a share of its size.
MONO_ADVANCE = 0.6021
PAPER, INK, MUTED, RULE, SHADE = "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#f6f8fa"
CLASS_COLOURS = {"published": "#0072b2", "contest": "#d98200", "seeded": "#009e73"}
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "inference-kernels", "svg.fonttype": "path"}


def require_matplotlib(exact: bool) -> None:
    """Raise EnvironmentMissing if Matplotlib is absent or, with `exact`, not the pinned version."""
    try:
        found = metadata.version("matplotlib")
    except metadata.PackageNotFoundError as error:
        missing = missing_package("matplotlib")
        raise EnvironmentMissing(
            expected=missing.expected, found=missing.found, where=missing.where, remedy=INSTALL
        ) from error
    if exact and found != MATPLOTLIB:
        raise EnvironmentMissing(
            expected=f"matplotlib {MATPLOTLIB}, which gives the same bytes",
            found=found,
            where=sys.executable,
            remedy=INSTALL,
        )


def render(title: str, height: int, draw: Callable[["Canvas"], None]) -> bytes:
    """Draw a page of `height` pixels with `draw` and return its SVG, independently of local Matplotlib settings."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        canvas = Canvas(height)
        draw(canvas)
        return canvas.svg(title)


class Canvas:
    """A page of texts, boxes, lines and dots at pixel positions from the upper left corner; later ones lie above."""

    def __init__(self, height: int):
        from matplotlib import get_data_path
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(WIDTH / PIXELS, height / PIXELS), facecolor=PAPER)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.axes.axis("off")
        self.layers = itertools.count(1)
        self.fonts = {name: f"{get_data_path()}/fonts/ttf/{file}" for name, file in FONTS.items()}

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        font: str = "plain",
        colour: str = INK,
        align: str = "left",
    ) -> None:
        """Draw `text` with its baseline at `y`; `size` in pixels. `$` is an ordinary character."""
        from matplotlib.font_manager import FontProperties

        self.axes.text(
            x,
            y,
            text,
            fontproperties=FontProperties(fname=self.fonts[font], size=size * POINTS),
            color=colour,
            ha=align,
            va="baseline",
            parse_math=False,
            zorder=next(self.layers),
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        from matplotlib.patches import Rectangle

        self.axes.add_patch(
            Rectangle((x, y), width, height, facecolor=colour, linewidth=0, clip_on=False, zorder=next(self.layers))
        )

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str = RULE, width: float = 1) -> None:
        self.axes.plot(
            xs,
            ys,
            color=colour,
            linewidth=width * POINTS,
            solid_capstyle="butt",
            clip_on=False,
            zorder=next(self.layers),
        )

    def dots(self, xs: Sequence[float], y: float, colour: str) -> None:
        """Draw translucent dots, so that overlapping ones look darker."""
        self.axes.plot(
            xs,
            [y] * len(xs),
            "o",
            color=colour,
            markersize=8 * POINTS,
            markeredgewidth=0,
            alpha=0.65,
            clip_on=False,
            zorder=next(self.layers),
        )

    def svg(self, title: str) -> bytes:
        stream = io.BytesIO()
        self.figure.savefig(
            stream, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None, "Title": title}
        )
        return re.sub(rb"[ \t]+\n", b"\n", stream.getvalue())


def heading(canvas: Canvas, title: str, lines: list[str]) -> None:
    canvas.text(MARGIN, 30, title, 16, "bold")
    for number, line in enumerate(lines):
        canvas.text(MARGIN, 54 + LINE * number, line, colour=MUTED)


def legend(canvas: Canvas, y: float, counts: dict[str, int]) -> None:
    """Draw all classes, also empty ones, with their colours and numbers of workloads."""
    x = MARGIN
    for name, colour in CLASS_COLOURS.items():
        label = f"{name} {counts[name]:,}"
        canvas.box(x, y - 10, 12, 12, colour)
        canvas.text(x + 18, y, label)
        x += 18 + 8 * len(label) + 20


def stripes(canvas: Canvas, groups: list[str], top: float, row: float) -> None:
    """Draw a light background behind the rows of every other group, from margin to margin."""
    order = list(dict.fromkeys(groups))
    for number, group in enumerate(groups):
        if order.index(group) % 2 == 0:
            canvas.box(MARGIN - 8, top + row * number, WIDTH - 2 * MARGIN + 16, row, SHADE)


def scale(canvas: Canvas, marks: dict[float, str], top: float, bottom: float) -> None:
    """Draw vertical lines from `top` to `bottom` at the positions of `marks`, with their labels above."""
    for x, label in marks.items():
        canvas.line([x, x], [top, bottom])
        canvas.text(x, top - 6, label, 11, colour=MUTED, align="center")
