"""The explorer as one HTML file: template, style, script and data. The same data give the same bytes.

Data cannot become markup or code: it is embedded as escaped JSON, the script writes it as text only, figures are
shown as images, and the page's policy runs no other script and loads nothing.
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import PackError
from inference_kernels.core.files import read_text, write_text
from inference_kernels.pages.explorer.data import explorer_data
from inference_kernels.pages.generated import differences

PAGE = "results/explorer.html"
REMEDY = "run: python scripts/build_explorer.py"
FOLDER = Path(__file__).parent
STYLE = "style.css"
# In this order: each file uses names of those before it.
SCRIPTS = ("dom.js", "store.js", "filters.js", "lists.js", "overviews.js", "workload.js", "definition.js", "main.js")
SLOT = re.compile(r"\{\{(\w+)\}\}")


def page_text(root: Path) -> str:
    """Write the whole page of the dataset at `root`; SchemaError for data that the page cannot show."""
    style = read_text(FOLDER / STYLE)
    parts = "\n".join(read_text(FOLDER / name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}\n}})();\n'
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src {_source(style)}",
            f"script-src {_source(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    data = script_json(explorer_data(root))
    values = {"policy": policy, "style": style, "script": script, "data": data}
    return SLOT.sub(lambda match: values[match[1]], read_text(FOLDER / "page.html"))


def _source(text: str) -> str:
    """Name an inline element with exactly this text for the policy (CSP level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def script_json(value: Any) -> str:
    """Write ASCII JSON without characters that could end or open a script element or a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def write_page(root: Path, output: Path) -> None:
    """Write the page of the dataset at `root`."""
    write_text(output, page_text(root))


def page_differences(root: Path, output: Path) -> list[PackError]:
    """Report `output` unless it is the page of the dataset at `root`."""
    return differences({output: page_text(root).encode()}, root, REMEDY)
