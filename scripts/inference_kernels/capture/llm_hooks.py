"""What the hooks of all language models share: which forward pass this is, and whether a call is to be kept.

The launcher writes the request that is being served (`RunFolder.begin_case`): its `keep` (`requests.Keep`)
names the forward passes to keep; `layers` of the run's selection name one layer per definition.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.hooks import EngineHooks
from inference_kernels.capture.ranks import Ranks, engine_ranks
from inference_kernels.core.errors import CaptureError

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

READY = "hooks_ready"


@dataclass(frozen=True)
class Target:
    """A function of the engine to hook. needs: parameters the hook reads by name. hook: method of the hook class."""

    path: str
    needs: tuple[str, ...]
    hook: str


FORWARD = Target(
    "sglang.srt.model_executor.model_runner.ModelRunner.forward", ("self", "forward_batch"), "around_forward"
)


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass of the model. phase: "prefill" or "decode".

    kind: the phase, and for a decode pass of some of the requests how many, such as "decode 2".
    number: from 0 among the passes of the kind.
    """

    case: str
    phase: str
    kind: str
    number: int
    batch_size: int
    request: dict[str, Any]


class LanguageHooks(EngineHooks):
    """Base of the hook classes. `step` is None outside a forward pass of a case."""

    targets: tuple[Target, ...] = ()

    def __init__(self, recorder: "Recorder", ranks: Callable[[], Ranks] = engine_ranks):
        super().__init__(recorder)
        self._find_ranks = ranks
        self.step: ForwardPass | None = None
        self.numbers: dict[tuple[str, str], int] = {}
        self.kept: set[tuple] = set()

    def around_forward(self, original: Callable, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """AROUND `ModelRunner.forward`: number the forward passes of the case."""
        self.step = self.safely("forward", lambda: self._begin_step(forward_batch))
        try:
            return original(runner, forward_batch, *args, **kwargs)
        finally:
            self.step = None

    def _begin_step(self, forward_batch: Any) -> ForwardPass | None:
        request, mode = self.recorder.request(), forward_batch.forward_mode
        if request is None or mode.is_idle():
            return None
        _refuse_graph_capture()
        phase = "decode" if mode.is_decode() else "prefill"
        batch = int(forward_batch.batch_size)
        kind = pass_kind(phase, batch, len(request["prompt_tokens"]))
        number = self.numbers.get((request["case"], kind), 0)
        self.numbers[request["case"], kind] = number + 1
        return ForwardPass(request["case"], phase, kind, number, batch, request)

    @property
    def ranks(self) -> Ranks:
        return self._find_ranks()

    def wants(self, definition: str, layer: int, rows: int) -> bool:
        """Count a call and tell whether to keep it; a call without rows is only counted."""
        return bool(self.safely(definition, lambda: self._wants(definition, layer, rows)))

    def _wants(self, definition: str, layer: int, rows: int) -> bool:
        step = self.step
        if step is None:
            return False
        self.recorder.observe(definition)
        chosen = self.selection["layers"].get(definition)
        key = step.case, step.kind, step.number, definition
        if (
            rows == 0
            or definition not in self.definitions
            or layer != chosen
            or key in self.kept
            or step.number not in step.request["keep"].get(step.kind, {}).get(definition, [])
        ):
            return False
        self.kept.add(key)
        return True

    def record(
        self,
        definition: str,
        inputs: dict[str, Any],
        outputs: dict[str, "torch.Tensor"],
        *,
        path: str,
        layer: int,
        notes: list[str],
        auxiliary: dict[str, "torch.Tensor"] | None = None,
        generated: dict[str, dict] | None = None,
    ) -> None:
        """Store one call; on rank 0 only, as all ranks hold the gathered tensors."""
        ranks = self.ranks
        if ranks.rank:
            return
        operation = {
            "call_path": path,
            "layer": layer,
            "step": self.step.number,
            "phase": self.step.phase,
            "ranks_gathered": ranks.size,
            "batch": self.step.batch_size,
        }
        self.recorder.record(
            definition,
            inputs,
            outputs,
            operation=operation,
            adaptations=notes,
            auxiliary=auxiliary,
            generated=generated,
        )


def pass_kind(phase: str, batch: int, requests: int) -> str:
    """Return the name in a case's `keep` of a forward pass over `batch` of its `requests`."""
    return f"decode {batch}" if phase == "decode" and batch != requests else phase


def arguments(function: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by parameter name, with the defaults of those not given."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def copied(tensors: dict[str, "torch.Tensor"]) -> dict[str, "torch.Tensor"]:
    """Copy the values as they are now, contiguous."""
    import torch

    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def refuse(expected: str, found: Any, where: str) -> CaptureError:
    return CaptureError(
        expected=expected,
        found=str(found),
        where=where,
        remedy="this engine or configuration computes the operator differently: extend the hooks",
    )


def _refuse_graph_capture() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            expected="an eager forward pass",
            found="a CUDA graph that is being captured",
            where="engine",
            remedy="start the engine with both CUDA graph backends disabled",
        )


def check_target(target: Target, resolve: Callable[[str], Any], engine: str) -> None:
    """CaptureError if the engine lacks the function, or the function a parameter that the hook reads."""
    try:
        names = list(inspect.signature(resolve(target.path)).parameters)
    except (ImportError, AttributeError) as error:
        raise CaptureError(
            expected=f"the function {target.path}",
            found=f"{error}",
            where=engine,
            remedy="install the pinned engine, or extend the hooks",
        ) from error
    missing = [name for name in target.needs if name not in names]
    if missing:
        raise CaptureError(
            expected=f"{target.path} with parameters {', '.join(target.needs)}",
            found=f"({', '.join(names)})",
            where=engine,
            remedy="install the pinned engine, or extend the hooks",
        )


def attach(hooks: LanguageHooks) -> None:
    """Register every hook with the engine's plugin mechanism and tell the launcher that they are in place."""
    from importlib.metadata import version
    from pkgutil import resolve_name

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target in (FORWARD, *hooks.targets):
        check_target(target, resolve_name, f"SGLang {version('sglang')}")
        HookRegistry.register(target.path, getattr(hooks, target.hook), HookType.AROUND)
    (hooks.recorder.run / READY).touch()
