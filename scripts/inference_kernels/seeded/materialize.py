"""Rewrite seeded weights too large for git, bit for bit, from the recipes in the capture records."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from inference_kernels.core.definitions import definition_files, load_definition, read_definition, require_dataset
from inference_kernels.core.errors import SchemaError, TensorFileError
from inference_kernels.core.files import atomic_writer, read_json, remove_leftovers
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.layout import BlobPath, inside
from inference_kernels.core.records import read_captures, read_workloads
from inference_kernels.core.tensors import tensor_file_header
from inference_kernels.seeded.recipes import ByteRecipe, Recipe, recipe_from_json, storage_chunks

# Larger tensors, such as expert banks, are written on request only.
SIZE_LIMIT = 2**30


@dataclass(frozen=True)
class RunPath:
    """A tensor of a capture run: blob/<definition>/<sha256>.safetensors."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def sha256(self) -> str:
        return Path(self.text).stem


@dataclass(frozen=True)
class Generated:
    """One file that a recipe writes: below blob/generated/ of a dataset, or in a capture run."""

    blob: BlobPath | RunPath
    recipe: Recipe | ByteRecipe
    workload: str


def recipe_file(recipe: Recipe | ByteRecipe) -> Iterator[bytes]:
    """Yield the content of the one-tensor file that `recipe` describes."""
    yield tensor_file_header(recipe.dtype, recipe.shape)
    yield from storage_chunks(recipe)


def recipe_digest(recipe: Recipe | ByteRecipe) -> str:
    """Hash the file that `recipe` describes (SHA-256)."""
    digest = hashlib.sha256()
    for piece in recipe_file(recipe):
        digest.update(piece)
    return digest.hexdigest()


def generated_files(root: Path, only: str | None = None) -> list[Generated]:
    """List every generated file that the workloads below `root` (or of one definition) read, once each."""
    require_dataset(root)
    if only:
        load_definition(root, only)
    recipes = {record["workload"]: record.get("generated", {}) for record in read_captures(root)}
    found: dict[str, Generated] = {}
    for path in definition_files(root):
        if only and path.stem != only:
            continue
        for workload in read_workloads(root, read_definition(path)):
            for name, recipe in recipes.get(workload["uuid"], {}).items():
                text = _input_path(workload, name)
                blob = BlobPath.parse(text, workload["uuid"])
                found.setdefault(text, Generated(blob, recipe_from_json(recipe), workload["uuid"]))
    return [found[text] for text in sorted(found)]


def _input_path(workload: dict, name: str) -> str:
    item = workload["inputs"].get(name, {})
    if "path" not in item:
        raise SchemaError(
            expected=f"recipes of the inputs {sorted(workload['inputs'])}",
            found=name,
            where=workload["uuid"],
            remedy="restore captures.jsonl, or import the run again",
        )
    return item["path"]


def run_generated_files(run: Path) -> list[Generated]:
    """List what the calls of a capture run read and a recipe rewrites, once each, by the run's own paths."""
    found: dict[str, Generated] = {}
    for path in sorted((run / "calls").glob("*.json")):
        call = read_json(path)
        for name, recipe in call["record"].get("generated", {}).items():
            text = _input_path(call["workload"], name)
            uuid = call["workload"]["uuid"]
            found.setdefault(text, Generated(RunPath(text), recipe_from_json(recipe), uuid))
    return [found[text] for text in sorted(found)]


def materialize(root: Path, files: list[Generated]) -> Iterator[tuple[Generated, bool]]:
    """Write each file that is absent or damaged; yield it and whether it was written.

    Leftovers of a killed run are removed before a file is written again.
    TensorFileError if a recipe gives other bytes than the file's name says; nothing is written then.
    """
    for item in files:
        path = inside(root, str(item.blob), item.workload)
        if path.exists() and sha256_file(path) == item.blob.sha256:
            yield item, False
            continue
        remove_leftovers(path.parent)
        with atomic_writer(path) as stream:
            _write_checked(stream, item)
        yield item, True


def _write_checked(stream: BinaryIO, item: Generated) -> None:
    digest = hashlib.sha256()
    for piece in recipe_file(item.recipe):
        digest.update(piece)
        stream.write(piece)
    if digest.hexdigest() != item.blob.sha256:
        raise TensorFileError(
            expected=f"a tensor of hash {item.blob.sha256}",
            found=digest.hexdigest(),
            where=f"recipe of {item.recipe.tensor} ({item.workload})",
            remedy="restore captures.jsonl, or report this machine: recipes are bit-exact",
        )
