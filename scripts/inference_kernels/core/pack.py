"""Pack readable sources into the native JSON files: `<name>.py` beside a definition, a folder beside a solution.

The JSON owns the schema fields, the source files own the code. `pack` copies bytes in and changes nothing else.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inference_kernels.core.definitions import definition_files
from inference_kernels.core.errors import DatasetError, PackError
from inference_kernels.core.files import read_object, read_text, write_text

REMEDY = "run: python scripts/pack.py"


@dataclass(frozen=True)
class Packed:
    """One JSON file and the text it should have."""

    path: Path
    text: str

    @property
    def in_sync(self) -> bool:
        return read_text(self.path) == self.text


def json_text(value: dict) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def packed_definition(path: Path) -> Packed:
    """The definition file `path` with `reference` taken from the `.py` of the same name (last key)."""
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
    """The solution file `path` with `sources` taken from the folder of the same name, in path order."""
    folder = path.with_suffix("")
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    if not files:
        raise PackError(
            expected=f"the readable sources {folder.name}/",
            found="no files",
            where=str(path),
            remedy="add the sources beside the solution",
        )
    solution = read_object(path)
    solution["sources"] = [{"path": file.relative_to(folder).as_posix(), "content": read_text(file)} for file in files]
    return Packed(path, json_text(solution))


def packed_tree(root: Path) -> Iterator[Callable[[], Packed]]:
    """How to pack each definition (also retired ones) and solution; PackError if there is no definition."""
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
    """Write every file that is out of step; return those written."""
    changed = [item for item in [build() for build in packed_tree(root)] if not item.in_sync]
    for item in changed:
        write_text(item.path, item.text)
    return [item.path for item in changed]


def out_of_sync(root: Path) -> list[DatasetError]:
    """One error for each file that differs or cannot be packed."""
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
