"""The figures of docs/figures for the explorer: SVG texts that also suit a dark page."""

import re
from pathlib import Path

from .figure_canvas import CLASS_COLOURS, INK, MUTED, PAPER, RULE, SHADE
from .figures import SHAPES
from .files import read_text

FIGURES = Path("docs", "figures")
# Colours on a dark page; the style sheet of the page has the same.
DARK = {
    PAPER: "#161b22",
    INK: "#e6edf3",
    MUTED: "#a3adb8",
    RULE: "#39424d",
    SHADE: "#1d242d",
    CLASS_COLOURS["published"]: "#58a6ff",
    CLASS_COLOURS["contest"]: "#f0a83c",
    CLASS_COLOURS["seeded"]: "#3fc79a",
}
TITLE = re.compile(r"<title>([^<]*)</title>")


def shapes_image(root: Path, definition: str) -> str | None:
    """The histogram of a definition; None if it was not drawn."""
    path = root / FIGURES / SHAPES / f"{definition}.svg"
    return both_schemes(read_text(path)) if path.exists() else None


def named_figures(root: Path) -> list[dict[str, str]]:
    """{title, svg} of every figure over all definitions."""
    texts = [(path.stem, read_text(path)) for path in sorted((root / FIGURES).glob("*.svg"))]
    return [
        {"title": found[1] if (found := TITLE.search(text)) else stem, "svg": both_schemes(text)}
        for stem, text in texts
    ]


def both_schemes(svg: str) -> str:
    """`svg` with a style that recolours it where the page is dark."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + style, svg, count=1)
