"""Seeded weights too large for git: rewritten bit for bit from the recipes in the capture records."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .definitions import definition_files, read_definition
from .errors import TensorFileError
from .files import atomic_writer
from .hashing import sha256_file
from .layout import BlobPath, inside
from .records import read_captures, read_workloads
from .seeded import Recipe, recipe_chunks
from .tensors import tensor_file_header


@dataclass(frozen=True)
class Generated:
    """One file below blob/generated/ and the recipe that writes it."""

    blob: BlobPath
    recipe: Recipe
    workload: str


def recipe_file(recipe: Recipe) -> Iterator[bytes]:
    """The content of the one-tensor file that `recipe` describes, in pieces."""
    yield tensor_file_header(recipe.dtype, recipe.shape)
    yield from recipe_chunks(recipe)


def recipe_digest(recipe: Recipe) -> str:
    digest = hashlib.sha256()
    for piece in recipe_file(recipe):
        digest.update(piece)
    return digest.hexdigest()


def generated_files(root: Path, only: str | None = None) -> list[Generated]:
    """Every generated file that the workloads below `root` (or of one definition) read, once each."""
    recipes = {record["workload"]: record.get("generated", {}) for record in read_captures(root)}
    found: dict[str, Generated] = {}
    for path in definition_files(root):
        if only and path.stem != only:
            continue
        for workload in read_workloads(root, read_definition(path)):
            for name, recipe in recipes.get(workload["uuid"], {}).items():
                text = workload["inputs"][name]["path"]
                blob = BlobPath.parse(text, workload["uuid"])
                found.setdefault(text, Generated(blob, Recipe.from_json(recipe), workload["uuid"]))
    return [found[text] for text in sorted(found)]


def materialize(root: Path, files: list[Generated]) -> Iterator[tuple[Generated, bool]]:
    """Write each file that is absent or damaged; yield it and whether it was written.

    TensorFileError if a recipe gives other bytes than the file's name says; nothing is written then.
    """
    for item in files:
        path = inside(root, str(item.blob), item.workload)
        if path.exists() and sha256_file(path) == item.blob.sha256:
            yield item, False
            continue
        with atomic_writer(path) as stream:
            _write_checked(stream, item)
        yield item, True


def _write_checked(stream: BinaryIO, item: Generated) -> None:
    digest = hashlib.sha256()
    for piece in recipe_file(item.recipe):
        digest.update(piece)
        stream.write(piece)
    if digest.hexdigest() != item.blob.sha256:
        raise TensorFileError(expected=f"a tensor of hash {item.blob.sha256}", found=digest.hexdigest(),
                              where=f"recipe of {item.recipe.tensor} ({item.workload})",
                              remedy="restore captures.jsonl, or report this machine: recipes are bit-exact")
