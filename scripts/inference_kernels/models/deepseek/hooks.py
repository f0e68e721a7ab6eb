"""Hooks inside SGLang's scheduler that record the operators of DeepSeek V4.1 Flash.

Engine facts (SGLang 0.5.23): the attention backend calls the FlashMLA wrappers by keyword from inside
`_forward_attention`; the experts' GEMMs run over rows sorted by expert and padded for each expert, with -1 in
`m_indices` on padding; the router's logits stay FP32 between `MoEGate.forward` and `vision_topk`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import LanguageHooks, Target, arguments, attach, copied, refuse
from inference_kernels.capture.paging import remap_slots
from inference_kernels.models.deepseek import hopper
from inference_kernels.models.deepseek.checkpoint import bank_recipe

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

ROUTER = "expert_router_bf16_h5120_e384_top6"
SPARSE_128, SPARSE_640 = "sparse_mla_prefill_bf16_h64_d512_s128", "sparse_mla_prefill_bf16_h64_d512_s640"
MIXED = "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512"
GATE_UP, DOWN = "grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32"
# Output columns of the two GEMMs -> definition -> the bank of weights it reads.
GROUPED = {4608: GATE_UP, 5120: DOWN}
BANKS = {GATE_UP: "w13", DOWN: "w2"}
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
    Target("sglang.srt.models.deepseek_v2.MoEGate.forward", ("self", "hidden_states"), "around_gate"),
    Target(
        "sglang.srt.multimodal.dsv41.vl_routing.vision_topk",
        ("moe", "logits", "input_ids", "num_token_non_padded"),
        "around_topk",
    ),
    Target(
        "sglang.srt.layers.quantization.fp8.Fp8MoEMethod.apply", ("self", "layer", "dispatch_output"), "around_experts"
    ),
    Target(
        "sglang.kernels.ops.quantization.fp8_kernel.sglang_per_token_group_quant_fp8",
        ("x", "group_size", "column_major_scales", "scale_tma_aligned", "scale_ue8m0"),
        "around_quantise",
    ),
    Target(
        "sglang.srt.layers.deep_gemm_wrapper.entrypoint.grouped_gemm_nt_f8f8bf16_contig",
        ("lhs", "rhs", "out", "m_indices", "recipe_a", "recipe_b"),
        "around_grouped",
    ),
)


class DeepseekHooks(LanguageHooks):
    targets = TARGETS

    def __init__(self, recorder: "Recorder", *args: Any):
        super().__init__(recorder, *args)
        self.substitutions = recorder.settings["substitutions"]
        self.attention: dict[str, Any] | None = None
        self.gates: dict[int, torch.Tensor] = {}
        self.experts: Experts | None = None

    # ---- attention

    def around_attention(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `_forward_attention`: layer, compression and batch of the calls inside."""
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
            inputs[f"kv{bits}_pages"] = _bytes(cache)[pages].squeeze(2)
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

    # ---- router

    def around_gate(
        self, original: Callable, gate: Any, hidden_states: "torch.Tensor", *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND `MoEGate.forward`: keep what the router reads until `vision_topk` of the same gate."""
        self.gates = {id(gate): hidden_states} if self.step else {}
        return original(gate, hidden_states, *args, **kwargs)

    def around_topk(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        call = arguments(original, args, kwargs)
        moe, hidden = call["moe"], self.gates.pop(id(call["moe"].gate), None)
        rows = 0 if hidden is None else hidden.shape[0]
        keep = self.wants(ROUTER, moe.layer_id, rows) and hidden is not None
        hidden = hidden.detach().clone() if keep else None
        result = original(*args, **kwargs)
        if keep:
            self.safely(ROUTER, lambda: self._record_router(moe, call, hidden, result))
        return result

    def _record_router(self, moe: Any, call: dict, hidden: "torch.Tensor", result: Any) -> None:
        config, gate, notes = moe.topk.topk_config, moe.gate, []
        bound = call["num_token_non_padded"]
        rows = hidden.shape[0] if bound is None else min(hidden.shape[0], int(bound))
        if (result.topk_ids[:rows] < 0).any():
            raise refuse("an expert in every column of real rows", "-1", ROUTER)
        if rows < hidden.shape[0]:
            notes.append(f"{hidden.shape[0] - rows} padding rows dropped")
        is_image = call["input_ids"][:rows] == moe.config.image_token_id
        folded = config.apply_routed_scaling_factor_on_output
        factor = float(config.routed_scaling_factor) if folded else 1.0
        inputs = {
            "hidden_states": hidden[:rows],
            "weight": gate.weight.detach(),
            "bias": gate.e_score_correction_bias.detach(),
            "bias_vl": gate.e_score_correction_bias_vl.detach(),
            "is_image": is_image,
            "routed_scaling_factor": factor,
        }
        raw_ids, raw_weights = result.topk_ids[:rows], result.topk_weights[:rows]
        ids, order = raw_ids.sort(-1)
        notes.append("experts of a row sorted by id, weights with them; the engine's order is in auxiliary")
        self.record(
            ROUTER,
            inputs,
            {"topk_ids": ids.int(), "topk_weights": raw_weights.gather(1, order).float()},
            layer=moe.layer_id,
            notes=notes,
            path="MoEGate.forward -> vision_topk",
            auxiliary={"engine_ids": raw_ids.int(), "engine_weights": raw_weights.float()},
            generated=self._generated({"weight": f"layers.{moe.layer_id}.ffn.gate.weight"}),
        )

    def _generated(self, tensors: dict[str, str]) -> dict[str, dict] | None:
        """Recipes of inputs that are tensors of a seeded checkpoint; None for a published one."""
        if self.recorder.settings["class"] != "seeded":
            return None
        recipes = self.recorder.settings["recipes"]
        return {name: recipes[tensor] for name, tensor in tensors.items()}

    # ---- experts

    def around_experts(
        self, original: Callable, method: Any, layer: Any, dispatch_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND `Fp8MoEMethod.apply`: collect the GEMMs inside, record them afterwards.

        Afterwards, because a rank whose experts got no row calls no GEMM, yet must take part in the
        gathering.
        """
        rows = dispatch_output.hidden_states.shape[0]
        names = [name for name in (GATE_UP, DOWN) if self.step and self.wants(name, layer.layer_id, rows)]
        self.experts = Experts(set(names))
        try:
            result = original(method, layer, dispatch_output, *args, **kwargs)
        finally:
            experts, self.experts = self.experts, None
        for name in names:
            self.safely(name, partial(self._record_grouped, name, layer, experts.calls.get(name)))
        return result

    def around_quantise(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND the activation quantiser: power-of-two scales inside the experts, where substituted."""
        if self.experts is None or "ue8m0_activations" not in self.substitutions:
            return original(*args, **kwargs)
        call = arguments(original, args, kwargs)
        forced = {"scale_ue8m0": True, "column_major_scales": False, "scale_tma_aligned": False}
        return original(**call | forced)

    def around_grouped(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND the contiguous grouped GEMM, once for gate and up together and once for down."""
        call = arguments(original, args, kwargs)
        lhs, rhs, out, experts = call["lhs"], call["rhs"], call["out"], call["m_indices"]
        name = GROUPED[out.shape[1]]
        group = hopper.activation_group(lhs[1], lhs[0].shape[1])
        keep = self.experts is not None and name in self.experts.wanted
        # The engine releases its operands right after the call.
        rows = self.safely(name, lambda: _routed_rows(lhs, experts, group)) if keep else None
        if "grouped_gemm" in self.substitutions:
            result = hopper.grouped_gemm(lhs, rhs, out, experts)
        else:
            # The engine passes groups of 128 for both GEMMs; the bytes of the first have groups of 32.
            result = original(**call | {"recipe_a": (1, group)})
        if rows:
            self.experts.calls[name] = rows | {"rhs": rhs, "d": out[rows["real"]], "group": group}
        return result

    def _record_grouped(self, name: str, layer: Any, call: dict[str, Any] | None) -> None:
        ranks, which = self.ranks, BANKS[name]
        if call is None:
            if ranks.size == 1:
                raise refuse(
                    "a contiguous grouped GEMM in Fp8MoEMethod.apply (moe_runner_backend deep_gemm)", "none", name
                )
            call = _no_rows(layer, which)
        codes, scales = call["rhs"]
        scales = hopper.scale_bytes(scales, codes.shape[2] * 2 // 32)
        tensors = {
            "a": call["a"],
            "a_scale": call["a_scale"],
            "b": _bytes(codes),
            "b_scale": _bytes(scales),
            "expert_ids": call["expert_ids"] + ranks.rank * codes.shape[0],
        }
        inputs = {key: ranks.cat(tensor, 0) for key, tensor in tensors.items()}
        group = call["group"]
        notes = [
            f"{call['padding']} padding rows dropped",
            "scales unpacked to E8M0 bytes, one for 32 elements",
            f"the engine's activation scales cover {group} elements"
            + ("" if group == 32 else f": each repeated {group // 32} times"),
        ]
        if "grouped_gemm" not in self.substitutions:
            notes.append(f"recipe_a corrected to (1, {group})")
        self.record(
            name,
            inputs,
            {"d": ranks.cat(call["d"], 0)},
            layer=layer.layer_id,
            notes=notes,
            path="Fp8MoEMethod.apply -> DeepGemmRunnerCore.run -> grouped_gemm_nt_f8f8bf16_contig",
            generated=self._bank_recipes(layer.layer_id, which),
        )

    def _bank_recipes(self, layer: int, which: str) -> dict[str, dict] | None:
        if self.recorder.settings["class"] != "seeded":
            return None
        seed = self.recorder.settings["model"]["seed"]
        return {
            "b": bank_recipe(seed, layer, which, False).to_json(),
            "b_scale": bank_recipe(seed, layer, which, True).to_json(),
        }


@dataclass
class Experts:
    """The experts that compute now. wanted: definitions to record. calls: what their GEMMs read and wrote."""

    wanted: set[str]
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)


def _routed_rows(lhs: tuple, experts: "torch.Tensor", group: int) -> dict[str, Any]:
    """Copies of the real rows. experts: int32 [R], local expert of each row, -1 on padding."""
    real = (experts >= 0).nonzero().flatten()
    scales = hopper.scale_bytes(lhs[1][real], lhs[0].shape[1] // group)
    return {
        "real": real,
        "padding": experts.numel() - real.numel(),
        "a": _bytes(lhs[0])[real],
        "a_scale": _bytes(scales.repeat_interleave(group // 32, dim=1)),
        "expert_ids": experts[real].int(),
    }


def _no_rows(layer: Any, which: str) -> dict[str, Any]:
    """The part of a rank none of whose experts got a row."""
    import torch

    codes, scales = getattr(layer, f"{which}_weight"), getattr(layer, f"{which}_weight_scale_inv")
    rows, columns, device = codes.shape[1], codes.shape[2] * 2, codes.device
    return {
        "padding": 0,
        "group": 32 if which == "w13" else 128,
        "rhs": (codes, scales),
        "a": torch.empty(0, columns, dtype=torch.int8, device=device),
        "a_scale": torch.empty(0, columns // 32, dtype=torch.int8, device=device),
        "expert_ids": torch.empty(0, dtype=torch.int32, device=device),
        "d": torch.empty(0, rows, dtype=torch.bfloat16, device=device),
    }


def _bytes(tensor: "torch.Tensor") -> "torch.Tensor":
    """A tensor of one-byte elements as int8, bit patterns unchanged."""
    import torch

    return tensor.detach().view(torch.int8)


def _extend_rows(forward_batch: Any) -> int:
    lengths = forward_batch.extend_seq_lens_cpu
    return 0 if lengths is None else int(sum(lengths))


def register(recorder: "Recorder") -> None:
    """Register the hooks in SGLang's scheduler, and the V4.1 cache layout where it is substituted."""
    if "v41_kv_layout" in recorder.settings["substitutions"]:
        hopper.use_v41_layout()
    attach(DeepseekHooks(recorder))
