"""Hooks inside SGLang's worker that record LTX-2.5's dense attention and its decoder's neighborhood attention.

Engine facts (SGLang 0.5.23, sglang/multimodal_gen/runtime): each of the six attentions of a transformer block
calls one attention layer, `LTX2Attention.attn`, with q, k, v [B, N, H, D] and at most a mask that shows every
key. The decoder's attention is `project_qkv`, which already scales q, then the kernel, then `to_out[0]`. The
forward context tells only the step; the argument of the pipeline stage tells which output is computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.diffusion_hooks import ENGINE, DiffusionHooks, EngineStep, attach, contiguous_copy
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.ltx.spec import ATTENTIONS, LTX_LAYERS, MODALITIES, STAGES

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

TRANSFORMER = f"{ENGINE}.models.dits.ltx_2.LTX2VideoTransformer3DModel"
DECODER = f"{ENGINE}.models.decoders.ltx_2_5_diffusion_decoder"
LAYERS = f"{ENGINE}.layers.attention.layer"
STAGE_CALL = f"{ENGINE}.pipelines_core.stages.base.PipelineStage.__call__"
GROUPED_LATENTS = f"{ENGINE}.pipelines_core.stages.latent_preparation.LatentPreparationStage.run_grouped_requests"


@dataclass(frozen=True)
class Site:
    """One attention of one block. name: its key in LTX_LAYERS. chosen: whether this block is captured."""

    name: str
    layer: str
    chosen: bool

    @property
    def definition(self) -> str:
        return LTX_LAYERS[self.name]


@dataclass
class Pending:
    """A call between its inputs and its output. inputs: copies. notes: adaptations so far."""

    place: EngineStep
    path: str
    inputs: dict[str, "torch.Tensor"]
    notes: list[str]


class LtxHooks(DiffusionHooks):
    """The hook functions and their state. kernel(): what computes the decoder's attention."""

    def __init__(self, recorder: "Recorder", place: Callable[[], EngineStep | None], kernel: Callable[[], str]):
        super().__init__(recorder, place)
        self.kernel = kernel
        self.sites: dict[int, Site] = {}
        self.pending: dict[str, Pending] = {}
        self.batch: Any = None

    def around_stage(self, original: Callable, stage: Any, batch: Any, *args, **kwargs) -> Any:
        """AROUND `PipelineStage.__call__`, such as denoising and decoding: keep `batch`, which is one output."""
        self.batch = batch
        try:
            return original(stage, batch, *args, **kwargs)
        finally:
            self.batch = None

    def attach_transformer(self, model: Any) -> None:
        """Register the attention layers of every block; calls of other blocks are only counted."""
        for index, block in enumerate(model.transformer_blocks):
            for name in ATTENTIONS:
                layer = block.get_submodule(name).attn
                self.sites[id(layer)] = Site(
                    name, f"transformer_blocks.{index}.{name}", index == self.selection["block"]
                )

    def attach_decoder(self, model: Any) -> None:
        """Register the attentions of all stages, and watch what goes into their output projections.

        The middle block of each stage is captured. CaptureError if a window is not the definition's.
        """
        for name in STAGES:
            blocks = model.decoder.get_submodule(name)
            for index, block in enumerate(blocks):
                site = Site(name, f"decoder.{name}.{index}", index == len(blocks) // 2)
                window = "x".join(map(str, block.attn.kernel_size))
                if not site.definition.endswith(f"_w{window}"):
                    raise CaptureError(
                        expected=f"the window of {site.definition}",
                        found=window,
                        where=site.layer,
                        remedy="check the decoder's configuration",
                    )
                self.sites[id(block.attn)] = site
                block.attn.to_out[0].register_forward_pre_hook(partial(self._before_output, site))

    def around_attention(self, original: Callable, layer: Any, q, k, v, *args, **kwargs) -> Any:
        """AROUND `forward` of the attention layers; only run calls of other owners (the connectors)."""
        site = self.sites.get(id(layer))
        if site is None:
            return original(layer, q, k, v, *args, **kwargs)
        mask = args[0] if args else kwargs.get("attn_mask")
        self.pending.pop(site.layer, None)
        backend = self.selection["sdpa_backends"][MODALITIES[site.definition]]
        self.safely(site.layer, lambda: self._begin_attention(site, layer, backend, q, k, v, mask))
        if backend == "math" and not self.failed:
            with math_attention(layer):
                # The engine views the output as [B, N, H * D]; math SDPA lays its heads out first.
                output = original(layer, q, k, v, *args, **kwargs).contiguous()
        else:
            output = original(layer, q, k, v, *args, **kwargs)
        self.safely(site.layer, lambda: self._finish(site, output, "denoise"))
        return output

    def _begin_attention(self, site: Site, layer: Any, backend: str, q, k, v, mask) -> None:
        implementation = type(layer.attn_impl).__name__
        if backend == "math" and implementation != "SDPAImpl":
            raise CaptureError(
                expected="torch SDPA, for the math policy",
                found=implementation,
                where=site.layer,
                remedy="pass --attention-backend torch_sdpa",
            )
        place = self.place()
        if place and self._wanted(site) and place.step in self.selection["attention_steps"]:
            path = f"LTX2Attention.forward -> {type(layer).__name__}.forward({implementation}, {backend} backend)"
            self._begin(site, place, path, (q, k, v), [mask_note(mask, q.shape[1], k.shape[1])])

    def around_projection(self, original: Callable, attention: Any, hidden_states) -> Any:
        """AROUND `LTX2VideoVaeNeighborhoodAttention.project_qkv`, whose results are the definition's inputs."""
        result, site = original(attention, hidden_states), self.sites.get(id(attention))
        if site:
            self.safely(site.layer, lambda: self._begin_stage(site, result))
        return result

    def _begin_stage(self, site: Site, tensors: tuple) -> None:
        place = self.place()
        if place and self._wanted(site):
            path = f"LTX2VideoVaeNeighborhoodAttention.forward -> {self.kernel()}"
            self._begin(site, place, path, tensors, [])

    def _before_output(self, site: Site, projection: Any, args: tuple) -> None:
        if site.layer in self.pending:
            self.safely(site.layer, lambda: self._finish_stage(site, args[0]))

    def _finish_stage(self, site: Site, joined: "torch.Tensor") -> None:
        call = self.pending[site.layer]
        call.notes.append("o: heads and head dimension split, values unchanged")
        self._finish(site, joined.reshape(call.inputs["q"].shape), "decode")

    def _wanted(self, site: Site) -> bool:
        """Count the call and tell whether it is captured."""
        self.recorder.observe(site.definition)
        return site.chosen and site.definition in self.definitions and site.name in self.selection["layers"]

    def _begin(self, site: Site, place: EngineStep, path: str, tensors: tuple, notes: list[str]) -> None:
        if self.first_time(place, site.layer):
            inputs = {name: contiguous_copy(tensor, name, notes) for name, tensor in zip("qkv", tensors)}
            self.pending[site.layer] = Pending(place, path, inputs, notes)

    def _finish(self, site: Site, output: "torch.Tensor", phase: str) -> None:
        call = self.pending.pop(site.layer, None)
        if call:
            outputs = {"o": contiguous_copy(output, "o", call.notes)}
            operation = self.operation(call.place, call.path, site.layer, phase)
            self.recorder.record(site.definition, call.inputs, outputs, adaptations=call.notes, operation=operation)


def mask_note(mask: "torch.Tensor | None", queries: int, keys: int) -> str:
    """Describe the mask after checking that every query sees every key; CaptureError if one does not.

    mask: None, [B, Nk], [B, Nq, Nk], or broadcastable to [B, H, Nq, Nk]; integers and booleans are visible
    where they are not 0, floating values are added to the scores.
    """
    if mask is None:
        return "mask: the engine passed none"
    form = f"{str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"
    rows = (1, queries) if mask.dim() > 2 else (1,)
    fits = 2 <= mask.dim() <= 4 and mask.shape[-1] == keys and (mask.dim() == 2 or mask.shape[-2] in rows)
    visible = (mask == 0) if mask.is_floating_point() else (mask != 0)
    if not fits or not bool(visible.all()):
        raise CaptureError(
            expected=f"no mask, or one that shows {keys} keys to {queries} queries",
            found=f"{form}, {int((~visible).sum())} hidden",
            where="attention mask",
            remedy="the definition has no mask: such a call cannot be captured",
        )
    kind = "additive, all 0" if mask.is_floating_point() else "all true"
    return f"mask dropped after checking that it shows every key: {form}, {kind}"


@contextmanager
def math_attention(layer: Any) -> Iterator[None]:
    """Use PyTorch's math SDPA: BF16 in and out, float32 between.

    On CUDA the layers select backends of their own inside this context; that is switched off for the call.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    owners = (layer, layer.attn_impl)
    before = [owner.allow_cudnn_sdp for owner in owners]
    try:
        for owner in owners:
            owner.allow_cudnn_sdp = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for owner, value in zip(owners, before):
            owner.allow_cudnn_sdp = value


def register(recorder: "Recorder") -> None:
    """Register the hooks in the engine's worker."""
    hooks = LtxHooks(recorder, lambda: stage_place(recorder, hooks.batch), decoder_kernel)
    models = {TRANSFORMER: hooks.attach_transformer, f"{DECODER}.LTX2VideoDiffusionDecoderModel": hooks.attach_decoder}
    targets = {
        STAGE_CALL: hooks.around_stage,
        GROUPED_LATENTS: prepare_each,
        f"{LAYERS}.LocalAttention.forward": hooks.around_attention,
        f"{LAYERS}.USPAttention.forward": hooks.around_attention,
        f"{DECODER}.LTX2VideoVaeNeighborhoodAttention.project_qkv": hooks.around_projection,
    }
    attach(hooks, models, targets)


def prepare_each(original: Callable, stage: Any, batches: list, server_args: Any) -> list:
    """AROUND `LatentPreparationStage.run_grouped_requests`, where SGLang 0.5.23 leaves out the audio latents."""
    return [stage(batch, server_args) for batch in batches]


def stage_place(recorder: "Recorder", batch: Any) -> EngineStep | None:
    """Return the place of the output that a pipeline stage works on; None for warm-up. The decoder's step is 0."""
    from sglang.multimodal_gen.runtime.managers.forward_context import get_forward_context_or_none

    request, context = recorder.request(), get_forward_context_or_none()
    if request is None or batch is None or batch.is_warmup:
        return None
    return EngineStep(request["case"], int(batch.seed), int(context.current_timestep) if context else 0)


def decoder_kernel() -> str:
    """Name what computes the decoder's attention: NATTEN if it is installed, else compiled flex attention."""
    import importlib

    natten = importlib.import_module(DECODER)._na3d()
    return "compiled flex_attention" if natten is None else "natten.functional.na3d"
