"""Hooks inside SGLang's scheduler that record the gated delta rule with the 4 / 8 heads of one Qwen3-Next rank.

Engine facts (SGLang 0.5.23): the backend's forward methods have the gate inputs, the kernel classes the
states; the FlashInfer prefill reads the tensors that `gdn_prefill_qkv_prepare_fwd` returns (queries and keys
normalised in BF16); states lie in a pool [slots, heads, V, K], updated in place; a negative slot index is
padding.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import LanguageHooks, Target, arguments, attach, copied, refuse
from inference_kernels.models.gdn.spec import DECODE, PREFILL

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

QK_HEADS, VALUE_HEADS, DIM = 4, 8, 128
EPSILON = 1e-6
BACKEND = "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend"
KERNELS = "sglang.srt.layers.attention.linear.kernels"
STATE = ("ssm_states", "cache_indices")
TARGETS = (
    Target(f"{BACKEND}.forward_extend", ("self", "layer", "a", "b"), "around_layer"),
    Target(f"{BACKEND}.forward_decode", ("self", "layer"), "around_layer"),
    Target("sglang.kernels.ops.attention.fla.l2norm.gdn_prefill_qkv_prepare_fwd", ("q", "k", "v"), "around_prepare"),
    Target(
        f"{KERNELS}.gdn_flashinfer.FlashInferGDNKernel.extend",
        ("self", "q", "query_start_loc", *STATE),
        "around_prefill",
    ),
    Target(
        f"{KERNELS}.gdn_flashinfer.FlashInferGDNKernel.decode",
        ("self", "q", "k", "v", "a", "b", "A_log", "dt_bias", *STATE),
        "around_decode",
    ),
    Target(
        f"{KERNELS}.gdn_triton.TritonGDNKernel.packed_decode",
        ("self", "mixed_qkv", "a", "b", "A_log", "dt_bias", *STATE),
        "around_packed_decode",
    ),
)


class GdnHooks(LanguageHooks):
    targets = TARGETS
    layer: dict[str, Any] | None = None
    prepared: dict[str, "torch.Tensor"] | None = None

    def around_layer(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND the backend's forward methods: keep the layer and its gate inputs."""
        self.layer, self.prepared = arguments(original, args, kwargs), None
        try:
            return original(*args, **kwargs)
        finally:
            self.layer = None

    def around_prepare(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND the normalisation before the FlashInfer prefill: keep the very tensors that its kernel reads."""
        result = original(*args, **kwargs)
        if self.layer is not None:
            self.prepared = dict(zip(("q", "k", "v"), result))
        return result

    def around_prefill(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        call, layer = arguments(original, args, kwargs), self.layer
        rows = call["q"].shape[1] if layer and call["q"].shape[2] == QK_HEADS else 0
        keep = layer is not None and self.wants(PREFILL, layer["layer"].layer_id, rows)
        before = self.safely(PREFILL, lambda: self._before_prefill(call, layer)) if keep else None
        result = original(*args, **kwargs)
        if before:
            self.safely(PREFILL, lambda: self._record_prefill(call, layer, before, result[0]))
        return result

    def _before_prefill(self, call: dict, layer: dict) -> dict[str, Any]:
        kept = kept_sequences(call["cache_indices"], call["query_start_loc"])
        return {"kept": kept, "state": call["ssm_states"][kept["slots"]].float().clone()} | copied(
            {"a": layer["a"], "b": layer["b"]}
        )

    def _record_prefill(self, call: dict, layer: dict, before: dict, output: "torch.Tensor") -> None:
        if self.prepared is None:
            raise refuse("tensors prepared by gdn_prefill_qkv_prepare_fwd", "none", PREFILL)
        kept, gates = before["kept"], layer["layer"]
        rows = kept["rows"]
        inputs = {name: self.prepared[name][rows] for name in ("q", "k", "v")}
        inputs |= {
            "state": before["state"],
            **_decay(gates, before["a"][rows]),
            "b": before["b"][rows],
            "cu_seqlens": kept["cu_seqlens"],
            "scale": DIM**-0.5,
        }
        outputs = {"output": output[0][rows], "new_state": call["ssm_states"][kept["slots"]].float()}
        notes = [
            "queries and keys as the engine normalised them for its kernel, rounded to BF16",
            "states gathered from the pool before and after the call",
            "cu_seqlens widened to int64",
            WIDENED,
        ]
        notes += [
            f"{kept[name]} {what} dropped"
            for name, what in (("padding", "padding rows"), ("dropped", "padding or empty sequences"))
            if kept[name]
        ]
        self.record(
            PREFILL,
            inputs,
            outputs,
            layer=gates.layer_id,
            notes=notes,
            path="GDNAttnBackend.forward_extend -> FlashInferGDNKernel.extend",
        )

    def around_decode(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        call = arguments(original, args, kwargs)
        return self._decode("FlashInferGDNKernel.decode", call, lambda: original(*args, **kwargs))

    def around_packed_decode(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        call = arguments(original, args, kwargs)
        mixed = call["mixed_qkv"]
        if mixed.shape[-1] == (2 * QK_HEADS + VALUE_HEADS) * DIM:
            q, k, v = mixed.split([QK_HEADS * DIM, QK_HEADS * DIM, VALUE_HEADS * DIM], -1)
            call |= {name: part.unflatten(-1, (-1, DIM)) for name, part in (("q", q), ("k", k), ("v", v))}
        return self._decode("TritonGDNKernel.packed_decode", call, lambda: original(*args, **kwargs))

    def _decode(self, path: str, call: dict, run: Callable[[], Any]) -> Any:
        fits = "q" in call and call["q"].shape[-2] == QK_HEADS
        layer, rows = self.layer, call["cache_indices"].shape[0]
        keep = layer is not None and self.wants(DECODE, layer["layer"].layer_id, rows if fits else 0)
        before = self.safely(DECODE, lambda: self._before_decode(call)) if keep else None
        result = run()
        if before:
            self.safely(DECODE, lambda: self._record_decode(path, call, layer, before, result))
        return result

    def _before_decode(self, call: dict) -> dict[str, Any]:
        real = (call["cache_indices"] >= 0).nonzero().flatten()
        slots = call["cache_indices"][real].long()
        rows = {
            name: call[name].reshape(-1, heads, DIM)[real][:, None]
            for name, heads in (("q", QK_HEADS), ("k", QK_HEADS), ("v", VALUE_HEADS))
        }
        gates = {name: call[name].reshape(-1, VALUE_HEADS)[real][:, None] for name in ("a", "b")}
        return {
            "real": real,
            "slots": slots,
            "state": call["ssm_states"][slots].float().clone(),
            **copied(rows),
            **copied(gates),
        }

    def _record_decode(self, path: str, call: dict, layer: dict, before: dict, result: "torch.Tensor") -> None:
        inputs = {
            "q": normalised(before["q"]),
            "k": normalised(before["k"]),
            "v": before["v"],
            "state": before["state"],
            **_decay(call, before["a"]),
            "b": before["b"],
            "scale": DIM**-0.5,
        }
        output = result.reshape(-1, VALUE_HEADS, DIM)[before["real"]][:, None]
        outputs = {"output": output, "new_state": call["ssm_states"][before["slots"]].float()}
        notes = [
            "queries and keys normalised here and rounded to BF16: the engine's kernel normalises in float32",
            "states gathered from the pool before and after the call",
            WIDENED,
        ]
        padding = call["cache_indices"].numel() - before["real"].numel()
        if padding:
            notes.append(f"{padding} padding rows dropped")
        self.record(
            DECODE,
            inputs,
            outputs,
            layer=layer["layer"].layer_id,
            notes=notes,
            path=f"GDNAttnBackend.forward_decode -> {path}",
        )


WIDENED = "A_log and dt_bias widened to float32"


def _decay(source: Any, a: "torch.Tensor") -> dict[str, "torch.Tensor"]:
    """Return A_log, a, dt_bias in the definition's order. source: a layer, or the arguments of a call."""
    read = source.get if isinstance(source, dict) else lambda name: getattr(source, name)
    rates, bias = (read(name).detach().reshape(-1).float() for name in ("A_log", "dt_bias"))
    return {"A_log": rates, "a": a, "dt_bias": bias}


def normalised(x: "torch.Tensor") -> "torch.Tensor":
    """Return x / sqrt(sum of squares over the last axis + 1e-6), computed in float32, in the dtype of x."""
    import torch

    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPSILON)).to(x.dtype)


def kept_sequences(slots: "torch.Tensor", offsets: "torch.Tensor") -> dict[str, Any]:
    """Find the real sequences of a prefill: those with a slot of their own and at least one row.

    slots: int [n]. offsets: int [n + 1], first row of each sequence, then the end; rows after it are
    padding. Returns slots, rows (int64 indices), cu_seqlens (int64 from 0), and how many rows and sequences
    were dropped.
    """
    import torch

    bounds, owners = offsets.tolist(), slots.tolist()
    pairs = [(slot, first, end) for slot, first, end in zip(owners, bounds, bounds[1:]) if slot >= 0 and end > first]
    device = offsets.device
    rows = [torch.arange(first, end, device=device) for _, first, end in pairs]
    lengths = torch.tensor([0] + [end - first for _, first, end in pairs], device=device)
    kept = torch.cat(rows) if rows else torch.arange(0, device=device)
    return {
        "slots": torch.tensor([slot for slot, *_ in pairs], dtype=torch.int64, device=device),
        "rows": kept,
        "cu_seqlens": lengths.cumsum(0),
        "padding": bounds[-1] - kept.numel(),
        "dropped": len(owners) - len(pairs),
    }


def register(recorder: "Recorder") -> None:
    attach(GdnHooks(recorder))
