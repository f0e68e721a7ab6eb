"""Hooks inside SGLang's worker that record the Qwen-Image-2.1 transformer's GEMMs and block-causal attention.

Engine facts (SGLang 0.5.23, sglang/multimodal_gen/runtime/models/dits/qwen_image21.py): a layer with a
forward hook is left out of the fused q/k/v projections, so these hooks restore the plain GEMMs;
`attend_sample` computes the attention of one sample, prefix and target, through two attention layers.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.diffusion_hooks import (
    ENGINE,
    DiffusionHooks,
    EngineStep,
    attach,
    contiguous_copy,
    engine_place,
)
from inference_kernels.capture.recorder import CHECKPOINT_VARIABLE
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.image.attention import AttentionCall, SampleTrace, cached_prefix_call, empty_prefix_call
from inference_kernels.models.image.spec import CACHED_PREFIX, EMPTY_PREFIX, GEMM_LAYERS
from inference_kernels.seeded.checkpoint import read_recipes
from inference_kernels.seeded.recipes import Recipe, gives_bytes

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder


class ImageHooks(DiffusionHooks):
    """The hook functions and their state. recipes: of the checkpoint's weights; empty for a published one."""

    def __init__(self, recorder: "Recorder", place: Callable[[], EngineStep | None], recipes: dict[str, Recipe]):
        super().__init__(recorder, place)
        self.recipes = recipes
        self.local = threading.local()
        self.blocks: dict[int, int] = {}
        self.verified: set[str] = set()

    def attach(self, model: Any) -> None:
        """Put forward hooks on the GEMM layers of every block; the calls of other blocks are only counted."""
        for index, block in enumerate(model.transformer_blocks):
            self.blocks[id(block.attn)] = index
            for name in GEMM_LAYERS:
                gemm = GemmHook(self, index, name)
                layer = block.get_submodule(name)
                layer.register_forward_pre_hook(gemm.before)
                layer.register_forward_hook(gemm.after)

    @property
    def trace(self) -> SampleTrace | None:
        """Return the sample whose attention this thread computes now."""
        return getattr(self.local, "trace", None)

    def around_attend_sample(
        self, original: Callable, owner: Any, q, k, v, rope, prefix, layout, cache, *args, **kwargs
    ) -> Any:
        """AROUND `QwenImage21Attention.attend_sample`: record what it does as one call of a definition."""
        where = "attend_sample"
        place = self.safely(where, self.place)
        trace = place and self.safely(where, lambda: self._begin_sample(place, owner, layout, cache))
        self.local.trace = trace
        try:
            result = original(owner, q, k, v, rope, prefix, layout, cache, *args, **kwargs)
        finally:
            self.local.trace = None
        if trace and trace.selected:
            self.safely(trace.layer, lambda: self._record_sample(place, trace))
        return result

    def _begin_sample(self, place: EngineStep, owner: Any, layout: dict, cache: dict | None) -> SampleTrace:
        definition = CACHED_PREFIX if cache else EMPTY_PREFIX
        self.recorder.observe(definition)
        block = self.blocks[id(owner)]
        selected = (
            definition in self.definitions
            and block == self.selection["block"]
            and place.step in self.selection["attention_steps"]
            and self.first_time(place, block, definition)
        )
        # Read before the call, which fills the cache and may replace its tensors.
        rows = cache["key"].shape[1] if cache else layout["prefix_rope"].shape[0]
        segments = None if cache else tuple(layout["segments"])
        return SampleTrace(f"transformer_blocks.{block}.attn", rows, segments, selected)

    def _record_sample(self, place: EngineStep, trace: SampleTrace) -> None:
        cached = trace.segments is None
        definition, phase = (CACHED_PREFIX, "cached prefix") if cached else (EMPTY_PREFIX, "empty prefix")
        inputs, outputs, notes = cached_prefix_call(trace) if cached else empty_prefix_call(trace)
        path = f"QwenImage21Attention.attend_sample -> {trace.call_path()}"
        self.recorder.record(
            definition, inputs, outputs, adaptations=notes, operation=self.operation(place, path, trace.layer, phase)
        )

    def around_local(self, original: Callable, layer: Any, q, k, v, *args, **kwargs) -> Any:
        """AROUND `LocalAttention.forward`, which computes the segments of the prefix."""
        mask = args[0] if args else kwargs.get("attn_mask")
        return self._watch(
            "prefix",
            layer,
            "forward",
            {"q": q, "k": k, "v": v},
            mask,
            lambda: original(layer, q, k, v, *args, **kwargs),
        )

    def around_target(self, original: Callable, layer: Any, q, k, v, *args, **kwargs) -> Any:
        """AROUND `USPAttention.forward`: the target, keys and values joined with the prefix."""
        mask = args[0] if args else kwargs.get("attn_mask")
        return self._watch(
            "target",
            layer,
            "forward",
            {"q": q, "k": k, "v": v},
            mask,
            lambda: original(layer, q, k, v, *args, **kwargs),
        )

    def around_split_target(self, original: Callable, layer: Any, q, k_prefix, v_prefix, k, v) -> Any:
        """AROUND `USPAttention.forward_with_replicated_kv_prefix`: the target, keys and values in two parts."""
        tensors = {"q": q, "k_prefix": k_prefix, "v_prefix": v_prefix, "k": k, "v": v}
        return self._watch(
            "target",
            layer,
            "forward_with_replicated_kv_prefix",
            tensors,
            None,
            lambda: original(layer, q, k_prefix, v_prefix, k, v),
        )

    def _watch(self, part: str, layer: Any, method: str, tensors: dict, mask, run: Callable[[], Any]) -> Any:
        """Run one attention call and keep it; only run calls of other owners (the text encoder)."""
        trace = self.trace
        if not trace or not trace.selected or trace.inside:
            return run()
        path = f"{type(layer).__name__}.{method}({type(layer.attn_impl).__name__})"
        call = self.safely(path, lambda: _copy_call(path, tensors, mask, trace.notes))
        trace.inside = True
        try:
            output = run()
        finally:
            trace.inside = False
        if call:
            self.safely(path, lambda: _finish_call(call, output, getattr(trace, part)))
        return output

    def verified_recipe(self, tensor: str, weight: "torch.Tensor") -> Recipe | None:
        """Return the recipe of a weight after comparing all bytes; None if the checkpoint has no recipe for it.

        CaptureError if the engine's weight is not what the recipe generates.
        """
        recipe = self.recipes.get(tensor)
        if recipe and tensor not in self.verified:
            from inference_kernels.core.tensors import raw_bytes

            if not gives_bytes(recipe, raw_bytes(weight)):
                raise CaptureError(
                    expected="the weight that its recipe generates",
                    found="other bytes",
                    where=tensor,
                    remedy="check that the engine loads the weight unchanged",
                )
            self.verified.add(tensor)
        return recipe


class GemmHook:
    """The forward hooks of one layer: the input is copied before the call, the output after it."""

    def __init__(self, hooks: ImageHooks, block: int, name: str):
        self.hooks, self.block, self.name = hooks, block, name
        self.definition, self.layer = GEMM_LAYERS[name], f"transformer_blocks.{block}.{name}"
        self.pending: tuple[EngineStep, str, torch.Tensor, list[str]] | None = None

    def before(self, layer: Any, args: tuple) -> None:
        self.pending = self.hooks.safely(self.layer, lambda: self._before(args[0]))

    def _before(self, x: "torch.Tensor") -> tuple[EngineStep, str, "torch.Tensor", list[str]] | None:
        hooks, place = self.hooks, self.hooks.place()
        if place is None:
            return None
        hooks.recorder.observe(self.definition)
        stream, selection = self._stream(place), hooks.selection
        if (
            self.definition not in hooks.definitions
            or self.block != selection["block"]
            or self.name not in selection["layers"]
            or place.step not in selection["gemm_steps"]
            or stream is None
        ):
            return None
        notes: list[str] = []
        return place, stream, contiguous_copy(x, "A", notes), notes

    def _stream(self, place: EngineStep) -> str | None:
        """Return whose rows this call computes, "target" or "prefix"; None if it repeats an earlier call.

        Attention layers compute the prefix inside `attend_sample`. The MLP runs on the target and then, in
        the first step, on the prefix.
        """
        first = "prefix" if self.name.startswith("attn.") and self.hooks.trace else "target"
        if self.hooks.first_time(place, self.layer, first):
            return first
        second = self.name.startswith("img_mlp.") and self.hooks.first_time(place, self.layer, "prefix")
        return "prefix" if second else None

    def after(self, layer: Any, args: tuple, result: Any) -> None:
        pending, self.pending = self.pending, None
        if pending:
            self.hooks.safely(self.layer, lambda: self._record(layer, result, *pending))

    def _record(
        self, layer: Any, result: Any, place: EngineStep, stream: str, x: "torch.Tensor", notes: list[str]
    ) -> None:
        output = (result[0] if isinstance(result, tuple) else result).detach()
        recipe = self.hooks.verified_recipe(f"transformer/{self.layer}.weight", layer.weight)
        a, c = x.reshape(-1, x.shape[-1]), output.reshape(-1, output.shape[-1])
        notes = [
            *notes,
            f"A reshaped from {list(x.shape)} to {list(a.shape)}, "
            f"C from {list(output.shape)} to {list(c.shape)}, values unchanged",
        ]
        path = f"{type(layer).__name__}.forward -> {type(layer.quant_method).__name__}.apply"
        self.hooks.recorder.record(
            self.definition,
            {"A": a, "B": layer.weight.detach()},
            {"C": c},
            adaptations=notes,
            operation=self.hooks.operation(place, path, self.layer, stream),
            generated={"B": recipe.to_json()} if recipe else None,
        )


def _copy_call(path: str, tensors: dict, mask: "torch.Tensor | None", notes: list[str]) -> AttentionCall:
    import torch

    copies = {label: contiguous_copy(tensor, label, notes) for label, tensor in tensors.items()}
    parts = [[copies[part] for part in (f"{label}_prefix", label) if part in copies] for label in ("k", "v")]
    k, v = (torch.cat(part, dim=1) for part in parts)
    return AttentionCall(path, copies["q"], k, v, None if mask is None else mask.detach().clone())


def _finish_call(call: AttentionCall, output: "torch.Tensor", calls: list[AttentionCall]) -> None:
    import torch

    call.output = output.detach().clone(memory_format=torch.contiguous_format)
    calls.append(call)


def register(recorder: "Recorder") -> None:
    """Register the hooks in the engine's worker."""
    checkpoint = read_recipes(Path(os.environ[CHECKPOINT_VARIABLE]))
    hooks = ImageHooks(recorder, lambda: engine_place(recorder), checkpoint[1] if checkpoint else {})
    model, layers = f"{ENGINE}.models.dits.qwen_image21", f"{ENGINE}.layers.attention.layer"
    targets = {
        f"{model}.QwenImage21Attention.attend_sample": hooks.around_attend_sample,
        f"{layers}.LocalAttention.forward": hooks.around_local,
        f"{layers}.USPAttention.forward": hooks.around_target,
        f"{layers}.USPAttention.forward_with_replicated_kv_prefix": hooks.around_split_target,
    }
    attach(hooks, {f"{model}.QwenImage21Transformer2DModel": hooks.attach}, targets)
