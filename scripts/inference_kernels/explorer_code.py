"""Source code with marks for colours; the page makes the elements, so no markup is made of sources here."""

import importlib.util
from functools import cache
from typing import Any

from .cli import missing_package
from .errors import EnvironmentMissing
from .figure_canvas import INSTALL

# The first that a token's type falls under decides; everything else is plain (`.`).
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


def highlighted(path: str, text: str) -> dict[str, Any]:
    """{path, text, marks}; marks are runs such as `6k7.`: length in UTF-16 units, letter of LETTERS."""
    runs: list[list] = []
    for _, kind, value in _lexer(path).get_tokens_unprocessed(text):
        letter = PLAIN if value.isspace() else _letter(str(kind))
        if runs and runs[-1][1] == letter:
            runs[-1][0] += _units(value)
        else:
            runs.append([_units(value), letter])
    return {"path": path, "text": text, "marks": "".join(f"{length}{letter}" for length, letter in runs)}


def require_pygments() -> None:
    """EnvironmentMissing if Pygments is absent."""
    if importlib.util.find_spec("pygments") is None:
        missing = missing_package("pygments")
        raise EnvironmentMissing(expected=missing.expected, found=missing.found, where=missing.where, remedy=INSTALL)


def _lexer(path: str) -> Any:
    """By the file's name; plain text if nothing is known about it."""
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
