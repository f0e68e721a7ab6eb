"""Write a seeded checkpoint: configuration files, streamed safetensors weights, model card, recipe file.

A killed command leaves a folder that the same command completes: a file gets its final name only when it is whole,
its header holds the hash of its recipes, and `seeded_recipe.json` comes last.
"""

import hashlib
import json
import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import DatasetError
from inference_kernels.core.files import (
    atomic_writer,
    canonical_json,
    read_json,
    remove_leftovers,
    write_json,
    write_text,
)
from inference_kernels.seeded.recipes import GENERATOR, ByteRecipe, Recipe, recipe_from_json
from inference_kernels.seeded.weights import Weight

RECIPE_FILE = "seeded_recipe.json"
CARD_FILE = "MODEL_CARD.md"
# One process takes 1 s/GB for bytes and 3 s/GB for bfloat16, and the disk its share.
SECONDS_PER_GB = 4.0
RULE = (
    "standard deviation gain / sqrt(fan_in), fan_in the product of all sizes but the first; norms and biases constant"
)


class CheckpointError(DatasetError):
    """A folder that cannot take the checkpoint: foreign content, another seed, or too little space."""


@dataclass(frozen=True)
class Component:
    """One weight file of the checkpoint, in the folder `name` or, if `flat`, at the top."""

    name: str
    file: str
    weights: list[Weight]
    flat: bool = False

    @property
    def path(self) -> str:
        return self.file if self.flat else f"{self.name}/{self.file}"

    @property
    def prefix(self) -> str:
        """What precedes a tensor's name in its recipe, as tensors of two folders may have the same name."""
        return "" if self.flat else f"{self.name}/"

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights)

    def entries(self, seed: int) -> list[dict[str, Any]]:
        """Return the recipes of the weights, in file order."""
        return [weight.entry(seed, self.prefix) for weight in self.weights]


@dataclass(frozen=True)
class Pipeline:
    """Everything that a checkpoint folder holds. kind: its name in models/registry.py.

    documents: JSON by path. texts: other files by path. true_parts, truncated_parts, rule: for the model card.
    """

    kind: str
    title: str
    path_must_contain: str
    true_parts: str
    truncated_parts: str
    documents: dict[str, Any]
    components: list[Component]
    texts: dict[str, str] = field(default_factory=dict)
    rule: str = RULE
    generator: str = GENERATOR

    def config_sha256(self) -> str:
        return hashlib.sha256(canonical_json([self.documents, self.texts]).encode()).hexdigest()

    def weight_bytes(self) -> int:
        return sum(component.nbytes for component in self.components)


def recipe_document(pipeline: Pipeline, seed: int) -> dict[str, Any]:
    """Return the content of `seeded_recipe.json`: enough to make every weight again."""
    return {
        "kind": pipeline.kind,
        "title": pipeline.title,
        "generator": pipeline.generator,
        "seed": seed,
        "rule": pipeline.rule,
        "config_sha256": pipeline.config_sha256(),
        "components": {
            component.name: {"file": component.path, "weights": component.entries(seed)}
            for component in pipeline.components
        },
    }


def read_recipes(folder: Path) -> tuple[dict[str, Any], dict[str, Recipe | ByteRecipe]] | None:
    """Read the recipe file of a checkpoint and its recipes by tensor name; None without one."""
    if not (folder / RECIPE_FILE).exists():
        return None
    document = read_json(folder / RECIPE_FILE)
    entries = [entry for component in document["components"].values() for entry in component["weights"]]
    recipes = [recipe_from_json(entry) for entry in entries if "generator" in entry]
    return document, {recipe.tensor: recipe for recipe in recipes}


def write_checkpoint(pipeline: Pipeline, seed: int, folder: Path, report: Callable[[str], None], jobs: int = 1) -> bool:
    """Write or complete the checkpoint in `folder` with `jobs` processes; False if it was complete already.

    CheckpointError if the folder holds anything else, or another seed or shape, or the disk is too small.
    """
    recipe = recipe_document(pipeline, seed)
    _check_folder(pipeline, folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    missing = [
        component for component in pipeline.components if not _is_whole(folder / component.path, component, seed)
    ]
    _check_space(folder, pipeline.weight_bytes(), sum(c.nbytes for c in missing), jobs, report)
    if not missing and (folder / RECIPE_FILE).exists() and read_json(folder / RECIPE_FILE) == recipe:
        return False
    for path, document in pipeline.documents.items():
        write_json(folder / path, document)
    for path, text in pipeline.texts.items():
        write_text(folder / path, text)
    _write_files(folder, missing, seed, jobs, report)
    write_text(folder / CARD_FILE, model_card(pipeline, seed))
    write_json(folder / RECIPE_FILE, recipe)
    return True


def _check_folder(pipeline: Pipeline, folder: Path) -> None:
    if pipeline.path_must_contain not in folder.name.lower():
        raise CheckpointError(
            expected=f"a folder name that contains {pipeline.path_must_contain!r}",
            found=folder.name,
            where=str(folder),
            remedy="the engine recognises the pipeline by it: choose such a name",
        )
    known = {*pipeline.documents, *pipeline.texts, CARD_FILE, RECIPE_FILE}
    known |= {component.path for component in pipeline.components}
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        relative = path.relative_to(folder).as_posix()
        if path.is_file() and relative not in known and not path.name.startswith(".tmp-"):
            raise CheckpointError(
                expected="a new folder, or one that this command began",
                found=relative,
                where=str(folder),
                remedy="choose another folder",
            )


def _write_files(
    folder: Path, components: list[Component], seed: int, jobs: int, report: Callable[[str], None]
) -> None:
    if jobs == 1:
        for component in components:
            report(f"writing {component.path}")
            _write_weights(folder / component.path, component, seed)
        return
    # Spawned, not forked: this process may have threads (torch), and a lock held by one of them stays locked in a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        largest_first = sorted(components, key=lambda component: -component.nbytes)
        waiting = {
            pool.submit(_write_weights, folder / component.path, component, seed): component
            for component in largest_first
        }
        for future in as_completed(waiting):
            future.result()
            report(f"wrote {waiting[future].path}")


def _check_space(folder: Path, total: int, needed: int, jobs: int, report: Callable[[str], None]) -> None:
    free = shutil.disk_usage(folder).free
    seconds = needed / 1e9 * SECONDS_PER_GB / jobs
    report(
        f"checkpoint {total / 1e9:.2f} GB, to write {needed / 1e9:.2f} GB in about {seconds:.0f} s, "
        f"free {free / 1e9:.2f} GB"
    )
    # 16 MiB for the configuration files and the file system's own blocks.
    if free < needed + 2**24:
        raise CheckpointError(
            expected=f"{needed / 1e9:.2f} GB of free disk space",
            found=f"{free / 1e9:.2f} GB",
            where=str(folder),
            remedy="free some space, choose another disk or fewer blocks",
        )


def weight_file_header(component: Component, seed: int) -> bytes:
    """Return length and JSON header of the safetensors file; the metadata carry the hash of the recipes."""
    recipes = hashlib.sha256(canonical_json(component.entries(seed)).encode()).hexdigest()
    metadata = {"format": "pt", "generator": GENERATOR, "recipes_sha256": recipes}
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for weight in component.weights:
        header[weight.name] = {
            "dtype": weight.dtype_name,
            "shape": list(weight.shape),
            "data_offsets": [offset, offset + weight.nbytes],
        }
        offset += weight.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _is_whole(path: Path, component: Component, seed: int) -> bool:
    if not path.exists():
        return False
    header = weight_file_header(component, seed)
    with open(path, "rb") as stream:
        same = stream.read(len(header)) == header
    if same and path.stat().st_size == len(header) + component.nbytes:
        return True
    raise CheckpointError(
        expected="weights of the same seed, shape and generator",
        found="others",
        where=str(path),
        remedy="choose another folder, or remove this one first",
    )


def _write_weights(path: Path, component: Component, seed: int) -> None:
    with atomic_writer(path) as stream:
        stream.write(weight_file_header(component, seed))
        for weight in component.weights:
            for chunk in weight.chunks(seed, component.prefix):
                stream.write(chunk)


def model_card(pipeline: Pipeline, seed: int) -> str:
    return f"""# {pipeline.title}: seeded, untrained

The weights of this checkpoint come from seed {seed} and the generator
`{pipeline.generator}`; nobody trained them.
What it makes is noise. It exists so that an engine runs its real kernels on tensors of the real shapes.

* True to the published model: {pipeline.true_parts}.
* Truncated: {pipeline.truncated_parts}.
* Weights: {pipeline.rule}. `{RECIPE_FILE}` lists the recipe of every tensor.

Data captured with it are of the class `seeded`; never call them published, trained or production data.
"""
