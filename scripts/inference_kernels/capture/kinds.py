"""What can be captured from a diffusion model: cases, sizes, layers and steps. Standard library only."""

from dataclasses import dataclass, field
from typing import Any

STEP_NAMES = ["first", "early", "middle", "last"]


@dataclass(frozen=True)
class MediaCase:
    """One authored request. frames: of a video, None for an image.

    edits: the case whose first output is the image to start from, unless another image is given.
    """

    prompt: str
    width: int
    height: int
    edits: str | None = None
    frames: int | None = None

    @property
    def size(self) -> tuple[int, ...]:
        """Return width, height and, of a video, frames."""
        return (self.width, self.height) + ((self.frames,) if self.frames else ())


@dataclass(frozen=True)
class Kind:
    """What can be captured from one diffusion model.

    model: short name of the published checkpoint. pipeline: class name in model_index.json.
    size_step: widths and heights are multiples of it. smallest: width, height and, of a video, frames.
    layers: layer -> definition; any of them can be chosen. first_step, later_steps: the other definitions
    that the denoising steps call. steps: their number; None: as many as the checkpoint's sample_sigmas.
    flags: of the engine. parameters: of every request. several_outputs: what the hooks change in the engine
    for requests with more than one output. modalities: attentions whose SDPA backend can be chosen.
    decoder_layers: those of the diffusion decoder, which decodes only if one of them is captured.
    decoder_smallest: the smallest video that it takes.
    """

    cases: dict[str, MediaCase]
    model: str
    pipeline: str
    path_must_contain: str
    size_step: int
    smallest: tuple[int, ...]
    layers: dict[str, str]
    default_layers: list[str]
    default_steps: list[str]
    first_step: list[str] = field(default_factory=list)
    later_steps: list[str] = field(default_factory=list)
    steps: int | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    several_outputs: str = ""
    modalities: tuple[str, ...] = ()
    decoder_layers: list[str] = field(default_factory=list)
    decoder_smallest: tuple[int, ...] = ()

    @property
    def video(self) -> bool:
        return len(self.smallest) == 3

    def definitions(self, layers: list[str], steps: list[str]) -> list[str]:
        """Return what these layers and steps can capture."""
        found = [definition for layer, definition in self.layers.items() if layer in layers]
        found += self.first_step if "first" in steps else []
        found += self.later_steps if set(steps) - {"first"} else []
        return list(dict.fromkeys(found))
