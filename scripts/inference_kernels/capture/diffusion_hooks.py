"""What the hooks of all diffusion models share: where the engine is, errors, copies, repeated calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import CaptureError

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

ENGINE = "sglang.multimodal_gen.runtime"


@dataclass(frozen=True)
class Place:
    """Where the engine is. case: the request. seed: that of the output being made. step: from 0."""

    case: str
    seed: int
    step: int


class DiffusionHooks:
    """Hook functions' common state. `place()` is None outside a denoising step of a real request."""

    def __init__(self, recorder: "Recorder", place: Callable[[], Place | None]):
        self.recorder, self.place = recorder, place
        self.selection, self.definitions = recorder.settings["selection"], recorder.settings["definitions"]
        self.first_seed = recorder.settings["seed"]
        self.seen: set[tuple] = set()
        self.failed = False

    def safely(self, where: str, work: Callable[[], Any]) -> Any:
        """`work()`; any exception is left in the run folder, where the launcher finds it, and ends capturing.

        The engine goes on: raised here, the exception would look like a failure of the engine.
        """
        if self.failed:
            return None
        try:
            return work()
        except Exception as error:
            self.failed = True
            self.recorder.report_error(where, error)
            return None

    def first_time(self, *key: Any) -> bool:
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def operation(self, place: Place, path: str, layer: str, phase: str) -> dict[str, Any]:
        return {
            "call_path": path,
            "layer": layer,
            "step": place.step,
            "phase": phase,
            "ranks_gathered": 1,
            "output": place.seed - self.first_seed,
        }


def contiguous_copy(tensor: "torch.Tensor", label: str, notes: list[str]) -> "torch.Tensor":
    """A contiguous copy of the values as they are now; a strided layout is noted, once."""
    import torch

    note = f"{label}: strides {list(tensor.stride())} made contiguous, values unchanged"
    if not tensor.is_contiguous() and note not in notes:
        notes.append(note)
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def engine_place(recorder: "Recorder") -> Place | None:
    """The place from the engine's forward context; None for text encoding and warm-up.

    The engine's own request id is None for requests of `DiffGenerator`, so the case names the request.
    """
    from sglang.multimodal_gen.runtime.managers.forward_context import get_forward_context_or_none

    context = get_forward_context_or_none()
    batch, request = context.forward_batch if context else None, recorder.request()
    if request is None or batch is None or context.current_timestep is None or batch.is_warmup:
        return None
    return Place(request["case"], int(batch.seed), int(context.current_timestep))


def require_one_rank() -> None:
    from sglang.multimodal_gen.runtime.distributed import get_sp_world_size, get_tp_world_size

    found = {"tensor parallel": get_tp_world_size(), "sequence parallel": get_sp_world_size()}
    if set(found.values()) != {1}:
        raise CaptureError(
            expected="one rank",
            found=str(found),
            where="engine",
            remedy="start the engine on one device: the hooks do not gather",
        )
