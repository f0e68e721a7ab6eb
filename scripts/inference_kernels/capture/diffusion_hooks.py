"""What the hooks of all diffusion models share: where the engine is, copies, repeated calls, registration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.hooks import EngineHooks
from inference_kernels.core.errors import CaptureError

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

ENGINE = "sglang.multimodal_gen.runtime"


@dataclass(frozen=True)
class EngineStep:
    """Where the engine is. case: the request. seed: of the output being computed. step: from 0."""

    case: str
    seed: int
    step: int


class DiffusionHooks(EngineHooks):
    """Base of the hook classes. `place()` is None outside a denoising step of a real request."""

    def __init__(self, recorder: "Recorder", place: Callable[[], EngineStep | None]):
        super().__init__(recorder)
        self.place = place
        self.first_seed = recorder.settings["seed"]
        self.seen: set[tuple] = set()

    def first_time(self, *key: Any) -> bool:
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def operation(self, place: EngineStep, path: str, layer: str, phase: str) -> dict[str, Any]:
        return {
            "call_path": path,
            "layer": layer,
            "step": place.step,
            "phase": phase,
            "ranks_gathered": 1,
            "output": place.seed - self.first_seed,
        }


def contiguous_copy(tensor: "torch.Tensor", label: str, notes: list[str]) -> "torch.Tensor":
    """Copy the values as they are now, contiguous; note a strided layout once."""
    import torch

    note = f"{label}: strides {list(tensor.stride())} made contiguous, values unchanged"
    if not tensor.is_contiguous() and note not in notes:
        notes.append(note)
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def engine_place(recorder: "Recorder") -> EngineStep | None:
    """Return the place from the engine's forward context; None for text encoding and warm-up.

    The engine's own request id is None for requests of `DiffGenerator`, so the case names the request.
    """
    from sglang.multimodal_gen.runtime.managers.forward_context import get_forward_context_or_none

    context = get_forward_context_or_none()
    batch, request = context.forward_batch if context else None, recorder.request()
    if request is None or batch is None or context.current_timestep is None or batch.is_warmup:
        return None
    return EngineStep(request["case"], int(batch.seed), int(context.current_timestep))


def attach(hooks: DiffusionHooks, models: dict[str, Callable], targets: dict[str, Callable]) -> None:
    """Register the hooks with the engine's plugin mechanism; called once in the worker.

    models: class -> what to do with each object once it is built. targets: function -> hook AROUND it.
    """
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

    def after(work: Callable[[Any], None]) -> Callable:
        def built(result: None, model: Any, *args: Any, **kwargs: Any) -> None:
            hooks.safely("attach", lambda: (require_one_rank(), work(model)))

        return built

    for owner, work in models.items():
        HookRegistry.register(f"{owner}.__init__", after(work), HookType.AFTER)
    for target, hook in targets.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def require_one_rank() -> None:
    """CaptureError if the engine runs on more than one device."""
    from sglang.multimodal_gen.runtime.distributed import get_sp_world_size, get_tp_world_size

    found = {"tensor parallel": get_tp_world_size(), "sequence parallel": get_sp_world_size()}
    if set(found.values()) != {1}:
        raise CaptureError(
            expected="one rank",
            found=str(found),
            where="engine",
            remedy="start the engine on one device: the hooks do not gather",
        )
