"""Sources of the hostile corpus: each trick, and its honest twin."""

from pathlib import Path
from typing import Any


def hostile_source(root: Path, row: dict[str, Any], honest: bool) -> str:
    """Read the source of a row's solution; `honest`: its twin, with the trick switched off."""
    text = (root / "tests" / "hostile" / "solutions" / f"{row['name']}.py").read_text()
    assert text.count("\nTRICK = True\n") == 1
    return text.replace("\nTRICK = True\n", "\nTRICK = False\n") if honest else text
