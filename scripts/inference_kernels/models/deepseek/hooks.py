"""Hooks inside SGLang's scheduler that record the operators of DeepSeek V4.1 Flash; here those of attention.

Engine fact (SGLang 0.5.23): the attention backend calls the FlashMLA wrappers by keyword from inside
`_forward_attention`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import Target, arguments, attach, copied, refuse
from inference_kernels.capture.paging import remap_slots
from inference_kernels.models.deepseek import experts, hopper
from inference_kernels.models.deepseek.experts import ExpertHooks, as_bytes
from inference_kernels.models.deepseek.spec import MIXED, SPARSE_128, SPARSE_640

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend"
FLASH_MLA = "sglang.kernels.ops.attention.flash_mla_interface"
TARGETS = (
    Target(
        f"{BACKEND}._forward_attention",
        ("self", "layer", "forward_batch", "compress_ratio", "attn_sink"),
        "around_attention",
    ),
    Target(
        f"{FLASH_MLA}.flash_mla_sparse_fwd",
        ("q", "kv", "indices", "sm_scale", "attn_sink", "topk_length"),
        "around_sparse_prefill",
    ),
    Target(
        f"{FLASH_MLA}.flash_mla_with_kvcache",
        (
            "q",
            "k_cache",
            "softmax_scale",
            "indices",
            "topk_length",
            "attn_sink",
            "extra_k_cache",
            "extra_indices_in_kvcache",
            "extra_topk_length",
        ),
        "around_decode",
    ),
    *experts.TARGETS,
)


class DeepseekHooks(ExpertHooks):
    targets = TARGETS
    attention: dict[str, Any] | None = None

    def around_attention(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `_forward_attention`: keep layer, compression and batch for the calls inside."""
        self.attention = arguments(original, args, kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            self.attention = None

    def around_sparse_prefill(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        outer = self.attention
        call = arguments(original, args, kwargs)
        name = SPARSE_640 if outer and outer["compress_ratio"] else SPARSE_128
        rows = _extend_rows(outer["forward_batch"]) if outer else 0
        keep = outer is not None and self.wants(name, outer["layer"].layer_id, rows)
        # The workspace is shared between layers and written again by the next one.
        read = ("q", "kv", "indices", "topk_length", "attn_sink")
        before = self.safely(name, lambda: copied({key: call[key] for key in read})) if keep else None
        result = original(*args, **kwargs)
        if before:
            self.safely(name, lambda: self._record_sparse(name, outer, call, before, result[0], rows))
        return result

    def _record_sparse(
        self, name: str, outer: dict, call: dict, before: dict, output: "torch.Tensor", rows: int
    ) -> None:
        heads, notes = outer["layer"].tp_q_head_num, []
        if rows > before["q"].shape[0]:
            raise refuse(f"at least {rows} query rows", list(before["q"].shape), name)
        if rows < before["q"].shape[0]:
            notes.append(f"{before['q'].shape[0] - rows} padding rows dropped")
        inputs = {
            "q": self.ranks.cat(before["q"][:rows, :heads], 1),
            "kv": before["kv"],
            "indices": before["indices"][:rows],
            "topk_length": before["topk_length"][:rows],
            "attn_sink": self.ranks.cat(before["attn_sink"][:heads], 0),
            "sm_scale": float(call["sm_scale"]),
        }
        notes.append("workspace copied before the call: the engine reuses its buffer")
        self.record(
            name,
            inputs,
            {"output": self.ranks.cat(output[:rows, :heads], 1)},
            notes=notes,
            layer=outer["layer"].layer_id,
            path="DeepseekV4AttnBackend._forward_prefill_sparse -> flash_mla_sparse_fwd",
        )

    def around_decode(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `flash_mla_with_kvcache`; on Hopper the V4.1 pages go to the substitute."""
        call, outer = arguments(original, args, kwargs), self.attention
        v41 = call["k_cache"].shape[-1] == hopper.FP8_BYTES
        if v41 and "mixed_decode" in self.substitutions:
            result = hopper.mixed_decode(call), None
        else:
            result = original(*args, **kwargs)
        extra = call["extra_k_cache"]
        fp4 = extra is not None and extra.shape[-1] == hopper.FP4_BYTES
        if outer and v41 and fp4 and outer["forward_batch"].forward_mode.is_decode():
            rows = int(outer["forward_batch"].batch_size)
            if self.wants(MIXED, outer["layer"].layer_id, rows):
                self.safely(MIXED, lambda: self._record_decode(outer, call, result[0], rows))
        return result

    def _record_decode(self, outer: dict, call: dict, output: "torch.Tensor", rows: int) -> None:
        heads = outer["layer"].tp_q_head_num
        inputs: dict[str, Any] = {"q": self.ranks.cat(call["q"][:rows, 0, :heads], 1)}
        slots, lengths = {}, {}
        for bits, prefix in ((8, ""), (4, "extra_")):
            cache = call[f"{prefix}k_cache"]
            lengths[bits] = call[f"{prefix}topk_length"][:rows].int()
            index = call["extra_indices_in_kvcache" if prefix else "indices"][:rows, 0]
            slots[bits], pages = remap_slots(index, lengths[bits], cache.shape[1])
            if not pages.numel():
                raise refuse(f"FP{bits} pages that a row reads", "none", MIXED)
            inputs[f"kv{bits}_pages"] = as_bytes(cache)[pages].squeeze(2)
        inputs |= {
            "indices8": slots[8],
            "indices4": slots[4],
            "length8": lengths[8],
            "length4": lengths[4],
            "attn_sink": self.ranks.cat(call["attn_sink"][:heads], 0),
            "sm_scale": float(call["softmax_scale"]),
        }
        notes = [
            "pages that no row reads left out, the others whole and renumbered in increasing order",
            "slots from the length on set to -1",
            "axis of size 1 dropped from queries, slots and outputs",
        ]
        if rows < call["q"].shape[0]:
            notes.append(f"{call['q'].shape[0] - rows} padding rows dropped")
        self.record(
            MIXED,
            inputs,
            {"output": self.ranks.cat(output[:rows, 0, :heads], 1)},
            notes=notes,
            layer=outer["layer"].layer_id,
            path="DeepseekV4AttnBackend._forward_attention -> flash_mla_with_kvcache",
        )


def _extend_rows(forward_batch: Any) -> int:
    lengths = forward_batch.extend_seq_lens_cpu
    return 0 if lengths is None else int(sum(lengths))


def register(recorder: "Recorder") -> None:
    """Register the hooks in the engine's worker, and the V4.1 cache layout where it is substituted."""
    if "v41_kv_layout" in recorder.settings["substitutions"]:
        hopper.use_v41_layout()
    attach(DeepseekHooks(recorder))
