"""Pack readable sources into the native JSON files: `<name>.py` beside a definition, a folder beside a solution.

The JSON owns the schema fields, the source files own the code. `pack` copies bytes in and changes nothing else.
Solutions of one kind share a source: see `solution_sources`.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import definition_files
from inference_kernels.core.errors import DatasetError, PackError
from inference_kernels.core.files import read_object, read_text, write_text

REMEDY = "run: python scripts/pack.py"
CONSTANTS_IMPORT = re.compile(r"^from \.constants import (.+)\n", re.M)


@dataclass(frozen=True)
class Packed:
    """One JSON file and the text it should have."""

    path: Path
    text: str

    @property
    def in_sync(self) -> bool:
        return read_text(self.path) == self.text


def json_text(value: dict[str, Any]) -> str:
    """Write a JSON object as the dataset keeps it: indented, keys in their order, a newline at the end."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def packed_definition(path: Path) -> Packed:
    """Read the definition file `path`; its `reference`, the last key, is the text of the `.py` of the same name."""
    source = path.with_suffix(".py")
    if not source.is_file():
        raise PackError(
            expected=f"the readable reference {source.name}",
            found="no such file",
            where=str(path),
            remedy="add the reference beside its definition",
        )
    definition = read_object(path)
    definition.pop("reference", None)
    definition["reference"] = read_text(source)
    return Packed(path, json_text(definition))


def packed_solution(path: Path) -> Packed:
    """Read the solution file `path`; its `sources` are the readable ones."""
    solution = read_object(path)
    solution["sources"] = solution_sources(path)
    return Packed(path, json_text(solution))


def solution_sources(path: Path) -> list[dict[str, str]]:
    """Read the sources of the solution file `path`: from the folder of its name, or from a shared source.

    A folder with main.py holds all sources. Without one, `shared/<kind>.py` beside the JSON becomes main.py for
    every solution named `<kind>_...`; the folder then holds the constants of this solution, if it has any.
    """
    folder = path.with_suffix("")
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    if folder / "main.py" not in files:
        kinds = [kind for kind in (path.parent / "shared").glob("*.py") if path.stem.startswith(f"{kind.stem}_")]
        if kinds:
            return [{"path": "main.py", "content": _joined(path, kinds, files)}]
    if not files:
        raise PackError(
            expected=f"the readable sources {folder.name}/, or shared/<start of that name>.py",
            found="no files",
            where=str(path),
            remedy="add the sources beside the solution",
        )
    return [{"path": file.relative_to(folder).as_posix(), "content": read_text(file)} for file in files]


def _joined(path: Path, kinds: list[Path], files: list[Path]) -> str:
    """Join a shared source with constants.py, which replaces the line that imports its names."""
    if len(kinds) > 1 or [file.name for file in files] not in ([], ["constants.py"]):
        raise PackError(
            expected="one shared source, and nothing but constants.py in the solution's folder",
            found=", ".join(file.relative_to(path.parent).as_posix() for file in sorted(kinds) + files),
            where=str(path),
            remedy="name the shared source so that it starts one family's names, or add main.py to the folder",
        )
    source, constants = read_text(kinds[0]), "".join(read_text(file) for file in files)
    imported = {name for line in CONSTANTS_IMPORT.findall(source) for name in line.split(", ")}
    assigned = _assigned(constants, path)
    if imported != assigned:
        raise PackError(
            expected=f"the constants that shared/{kinds[0].name} imports: {', '.join(sorted(imported)) or 'none'}",
            found=", ".join(sorted(assigned)) or "none",
            where=str(path),
            remedy=f"correct {path.stem}/constants.py or the line `from .constants import ...`",
        )
    return CONSTANTS_IMPORT.sub(lambda _: constants, source, count=1)


def _assigned(constants: str, path: Path) -> set[str]:
    """List the names that a constants file assigns; PackError if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(constants)))
    except SyntaxError as error:
        raise PackError(
            expected="Python in constants.py", found=str(error), where=str(path), remedy="correct the file"
        ) from error
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def packed_tree(root: Path) -> Iterator[Callable[[], Packed]]:
    """Yield a packing call per definition, retired ones included, and solution; PackError without a definition."""
    definitions = definition_files(root) + definition_files(root, "retired/definitions")
    if not definitions:
        raise PackError(
            expected="definitions/<op_type>/<name>.json",
            found="none",
            where=str(root),
            remedy="pass the root of the dataset with --root",
        )
    yield from (partial(packed_definition, path) for path in definitions)
    yield from (partial(packed_solution, path) for path in sorted((root / "solutions").glob("*/*.json")))


def pack(root: Path) -> list[Path]:
    """Write every file that differs from its sources; return the written paths."""
    changed = [item for item in [build() for build in packed_tree(root)] if not item.in_sync]
    for item in changed:
        write_text(item.path, item.text)
    return [item.path for item in changed]


def out_of_sync(root: Path) -> list[DatasetError]:
    """List one error per file that differs from its sources or cannot be packed."""
    errors: list[DatasetError] = []
    for build in packed_tree(root):
        try:
            item = build()
        except DatasetError as error:
            errors.append(error)
            continue
        if not item.in_sync:
            errors.append(
                PackError(
                    expected="the packed source equal to the readable one",
                    remedy=REMEDY,
                    found="a difference",
                    where=str(item.path.relative_to(root)),
                )
            )
    return errors
