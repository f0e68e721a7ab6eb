"""Load every component of a Diffusers folder; fail if a weight is missing, unexpected or of another shape.

Run as a script, in the converter's environment: it imports the packages that `model_index.json` names.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

# Library named in model_index.json -> module of its classes.
MODULES = {"ltx2": "diffusers.pipelines.ltx2"}
PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def load(folder: Path) -> Iterator[str]:
    """Load all components, one at a time, and yield their names. ValueError names what does not fit."""
    index = json.loads((folder / "model_index.json").read_text())
    components = {name: entry for name, entry in index.items() if isinstance(entry, list) and all(entry)}
    for name, (library, class_name) in components.items():
        owner = getattr(importlib.import_module(MODULES.get(library, library)), class_name)
        if any((folder / name).glob("*.safetensors")):
            _, info = owner.from_pretrained(str(folder / name), output_loading_info=True)
            wrong = {problem: sorted(map(str, info[problem]))[:5] for problem in PROBLEMS if info.get(problem)}
            if wrong:
                raise ValueError(f"{name} does not load strictly: {wrong}")
        else:
            owner.from_pretrained(str(folder / name))
        yield name


if __name__ == "__main__":
    for loaded in load(Path(sys.argv[1])):
        print(f"{loaded}: loaded", file=sys.stderr)
