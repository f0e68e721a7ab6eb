"""What the registry knows of an engine model. Standard library only."""

from collections.abc import Callable
from dataclasses import dataclass, field

from inference_kernels.capture.kinds import Kind
from inference_kernels.capture.requests import Profile
from inference_kernels.seeded.checkpoint import Pipeline


@dataclass(frozen=True)
class Repository:
    """A Hugging Face repository. revision: None pins what is current when the model is first prepared.

    patterns: files to take, of all (fnmatch). folder: below the distribution, if the files are converted.
    """

    id: str
    revision: str | None = None
    patterns: tuple[str, ...] = ("*",)
    folder: str = ""


@dataclass(frozen=True)
class Published:
    """A published checkpoint and the rented machine that captures it.

    The published descriptions name the checkpoints but print no revision, so the first preparation pins it in the
    model's volume, or --model-revision does. folder: name of the checkpoint, by which the engine recognises some
    architectures. gigabytes: of the download, for time limits only: the 475.3 GiB of DeepSeek are known, the other
    sizes are assumptions. memory_gib: host memory. case_seconds: time granted per case and output.
    expert_parallel: the experts are spread over all GPUs.
    """

    title: str
    folder: str
    repositories: tuple[Repository, ...]
    gpus: int
    gigabytes: int
    memory_gib: int
    case_seconds: int
    expert_parallel: bool = False

    @property
    def converted(self) -> bool:
        """Whether a converter turns the downloaded files into what the engine loads."""
        return any(repository.folder for repository in self.repositories)


@dataclass(frozen=True)
class EngineModel:
    """One engine model. hooks: module whose `register(recorder)` hooks the engine; imported in its workers only.

    checkpoint(kind, blocks): the seeded checkpoint; language models have a fixed number of layers.
    profiles: of a language model, by purpose:
        seeded      the starter slice: small cases on a seeded checkpoint
        large       larger cases on the same checkpoint, validated on the GPU host, kept as a summary
        rehearsal   the published cases on the same checkpoint, as far as its context reaches
        published   the published cases on the full checkpoint
    media: what can be captured from a diffusion model. published: None if no full checkpoint is captured.
    """

    checkpoint: Callable[[str, int], Pipeline]
    hooks: str
    profiles: dict[str, Profile] = field(default_factory=dict)
    media: Kind | None = None
    published: Published | None = None

    @property
    def script(self) -> str:
        """The command that captures the model."""
        return "capture_diffusion.py" if self.media else "capture_llm.py"
