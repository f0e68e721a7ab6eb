"""Rented captures: the pinned image, the volumes, where everything lies in a container. Standard library only.

<base>/repository   hooks, capture scripts, definitions, tasks: uploaded from this checkout
<base>/model        volume of the model: <checkpoint>/, then <checkpoint>.checkpoint.json
<base>/data         volume of all captures: captures/<name>/, uploads/<name>/
<base>/work         disk of the container: the run that is being captured
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from inference_kernels.core.errors import CaptureError
from inference_kernels.core.hashing import sha256_file

ENGINE_IMAGE = "lmsysorg/sglang@sha256:ddae0e399d3d94f7827f16183301cf8dac4cf0eae0ef25590b7dac5881d713d8"
APP = "inference-kernels"
CAPTURES_VOLUME = "inference-kernels-captures"
GPU = "B300"
CONTAINER_BASE = "/task"
UPLOADS = ("scripts", "definitions", "retired", "tasks", "prompts", "agentx_shapes.json")
CHECKPOINT = "checkpoint.json"
DOWNLOADS = "downloads.json"
INVENTORY = "inventory.json"
LOG = "engine.log"
# Exit codes of a container that ran out of time, or was taken away; a capture that ends by itself has 0 to 3.
OUT_OF_TIME = 124
TAKEN_AWAY = (130, 137, 143)


@dataclass(frozen=True)
class Layout:
    """Paths in a container; `base` is /task there and a scratch folder for the local runner."""

    base: str

    @property
    def repository(self) -> PurePosixPath:
        return PurePosixPath(self.base, "repository")

    @property
    def model(self) -> PurePosixPath:
        return PurePosixPath(self.base, "model")

    @property
    def data(self) -> PurePosixPath:
        return PurePosixPath(self.base, "data")

    @property
    def work(self) -> PurePosixPath:
        return PurePosixPath(self.base, "work")

    def here(self, container_path: str) -> str:
        """Translate a path of a rented container to this one."""
        return self.base + container_path.removeprefix(CONTAINER_BASE)


def model_volume(kind: str) -> str:
    return f"inference-kernels-{kind}"


def capture_folder(name: str) -> str:
    """Return the folder of a capture in the captures volume."""
    return f"captures/{name}"


def upload_files(repository: Path) -> Iterator[str]:
    """Yield the relative paths of what goes into the container; CaptureError if a part is missing."""
    for part in UPLOADS:
        path = repository / part
        if not path.exists():
            raise CaptureError(
                expected=f"{part} in the checkout",
                found="nothing",
                where=str(repository),
                remedy="restore the file from version control",
            )
        found = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        yield from sorted(item.relative_to(repository).as_posix() for item in found if "__pycache__" not in item.parts)


def code_digest(repository: Path) -> str:
    """Hash names and contents of all that is uploaded (SHA-256); a capture goes on with the same code only."""
    digest = hashlib.sha256()
    for name in upload_files(repository):
        digest.update(f"{name} {sha256_file(repository / name)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class JobSpec:
    """One container. name: unique among the running ones, which makes the work exclusive everywhere.

    command: argument vector. volumes: `model` and `data` -> volume name. gpus: 0 for a CPU worker.
    seconds: time limit.
    """

    name: str
    command: list[str]
    volumes: dict[str, str]
    gpus: int
    cpus: int
    memory_gib: int
    seconds: int
    environment: dict[str, str] = field(default_factory=dict)


class Job(Protocol):
    """A started container."""

    def lines(self) -> Iterator[str]:
        """Yield its output, line by line, until it ends."""

    def wait(self) -> int:
        """Return its exit code; OUT_OF_TIME if it ran out of time."""

    def release(self) -> None:
        """Stop it if it runs, and give everything back; may be called more than once."""


class Runner(Protocol):
    """A place to run containers. python: the interpreter inside."""

    layout: Layout
    python: str

    def start(self, spec: JobSpec) -> Job:
        """Start a container; CaptureError if one of that name runs already."""

    def upload(self, volume: str, files: dict[str, Path]) -> None:
        """Put local files at these paths of a volume."""

    def read(self, volume: str, path: str) -> Iterator[bytes]:
        """Yield the committed bytes of a file; FileNotFoundError if there is none."""
