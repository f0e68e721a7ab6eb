"""What a rented capture needs of the place that runs it. Two implementations: modal_client.py and
modal_local.py."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .modal_spec import Layout


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
        """Its output, until it ends."""

    def wait(self) -> int:
        """Its exit code; modal_spec.OUT_OF_TIME if it ran out of time."""

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
        """The committed bytes of a file; FileNotFoundError if there is none."""
