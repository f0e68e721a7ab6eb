"""Highlighted source code and recoloured figures for the explorer.

Sources get marks for colours; the page makes the elements, so no markup is made of sources here.
"""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import EnvironmentMissing, missing_package
from inference_kernels.core.files import read_text
from inference_kernels.pages.figures.canvas import CLASS_COLOURS, INK, INSTALL, MUTED, PAPER, RULE, SHADE
from inference_kernels.pages.figures.write import SHAPES

# The first entry that a token's type falls under decides; everything else is plain (`.`).
LETTERS = (
    ("Token.Comment", "c"),
    ("Token.Literal.String", "s"),
    ("Token.Literal.Number", "n"),
    ("Token.Keyword", "k"),
    ("Token.Operator.Word", "k"),
    ("Token.Name.Decorator", "d"),
    ("Token.Name.Function", "f"),
    ("Token.Name.Class", "f"),
    ("Token.Name.Builtin", "b"),
)
PLAIN = "."
FIGURES = Path("docs", "figures")
TITLE = re.compile(r"<title>([^<]*)</title>")
# Colours on a dark page, as in the page's style sheet.
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


def highlighted(path: str, text: str) -> dict[str, Any]:
    """Mark a source: {path, text, marks}; marks are runs of length in UTF-16 units and letter, such as `6k7.`."""
    runs: list[tuple[int, str]] = []
    for _, kind, value in _lexer(path).get_tokens_unprocessed(text):
        letter = PLAIN if value.isspace() else _letter(str(kind))
        if runs and runs[-1][1] == letter:
            runs[-1] = runs[-1][0] + _units(value), letter
        else:
            runs.append((_units(value), letter))
    return {"path": path, "text": text, "marks": "".join(f"{length}{letter}" for length, letter in runs)}


def require_pygments() -> None:
    """Raise EnvironmentMissing if Pygments is absent."""
    if importlib.util.find_spec("pygments") is None:
        missing = missing_package("pygments")
        raise EnvironmentMissing(expected=missing.expected, found=missing.found, where=missing.where, remedy=INSTALL)


def _lexer(path: str) -> Any:
    """Choose the lexer by the file's name; plain text for unknown names."""
    from pygments.lexers import get_lexer_for_filename
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    try:
        return get_lexer_for_filename(path)
    except ClassNotFound:
        return TextLexer()


@cache
def _letter(kind: str) -> str:
    return next((letter for prefix, letter in LETTERS if f"{kind}.".startswith(f"{prefix}.")), PLAIN)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def shapes_image(root: Path, definition: str) -> str | None:
    """Read the histogram of a definition; None if it was not drawn."""
    path = root / FIGURES / SHAPES / f"{definition}.svg"
    return both_schemes(read_text(path)) if path.exists() else None


def named_figures(root: Path) -> list[dict[str, str]]:
    """Read {title, svg} of every figure over all definitions."""
    texts = [(path.stem, read_text(path)) for path in sorted((root / FIGURES).glob("*.svg"))]
    return [
        {"title": found[1] if (found := TITLE.search(text)) else stem, "svg": both_schemes(text)}
        for stem, text in texts
    ]


def both_schemes(svg: str) -> str:
    """Add a style that recolours `svg` where the page is dark."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + style, svg, count=1)
