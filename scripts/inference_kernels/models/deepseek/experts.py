"""Hooks of the router and of the experts' grouped GEMMs of DeepSeek V4.1 Flash.

Engine facts (SGLang 0.5.23): the experts' GEMMs run over rows sorted by expert and padded for each expert, with
-1 in `m_indices` on padding; the router's logits stay FP32 between `MoEGate.forward` and `vision_topk`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import LanguageHooks, Target, arguments, refuse
from inference_kernels.models.deepseek import hopper
from inference_kernels.models.deepseek.checkpoint import bank_recipe
from inference_kernels.models.deepseek.spec import DOWN, GATE_UP, ROUTER

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

# Output columns of the two GEMMs -> definition -> the bank of weights it reads.
GROUPED = {4608: GATE_UP, 5120: DOWN}
BANKS = {GATE_UP: "w13", DOWN: "w2"}
TARGETS = (
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


@dataclass
class Experts:
    """The experts of the layer that runs. wanted: definitions to record. calls: what their GEMMs read and wrote."""

    wanted: set[str]
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)


class ExpertHooks(LanguageHooks):
    """Hook functions of router and experts; `hooks.DeepseekHooks` adds those of attention."""

    def __init__(self, recorder: "Recorder", *args: Any):
        super().__init__(recorder, *args)
        self.substitutions = recorder.settings["substitutions"]
        self.gates: dict[int, torch.Tensor] = {}
        self.experts: Experts | None = None

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
        """Return the recipes of inputs that are tensors of a seeded checkpoint; None for a published one."""
        if self.recorder.settings["class"] != "seeded":
            return None
        recipes = self.recorder.settings["recipes"]
        return {name: recipes[tensor] for name, tensor in tensors.items()}

    def around_experts(
        self, original: Callable, method: Any, layer: Any, dispatch_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND `Fp8MoEMethod.apply`: collect the GEMMs inside, record them afterwards.

        A rank whose experts got no row calls no GEMM, yet must take part in the gathering.
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
        """AROUND the activation quantiser: force power-of-two scales inside the experts, where substituted."""
        if self.experts is None or "ue8m0_activations" not in self.substitutions:
            return original(*args, **kwargs)
        call = arguments(original, args, kwargs)
        forced = {"scale_ue8m0": True, "column_major_scales": False, "scale_tma_aligned": False}
        return original(**call | forced)

    def around_grouped(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND the contiguous grouped GEMM, called once for gate and up together and once for down."""
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
            "b": as_bytes(codes),
            "b_scale": as_bytes(scales),
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


def _routed_rows(lhs: tuple, experts: "torch.Tensor", group: int) -> dict[str, Any]:
    """Copy the real rows. experts: int32 [R], local expert of each row, -1 on padding."""
    real = (experts >= 0).nonzero().flatten()
    scales = hopper.scale_bytes(lhs[1][real], lhs[0].shape[1] // group)
    return {
        "real": real,
        "padding": experts.numel() - real.numel(),
        "a": as_bytes(lhs[0])[real],
        "a_scale": as_bytes(scales.repeat_interleave(group // 32, dim=1)),
        "expert_ids": experts[real].int(),
    }


def _no_rows(layer: Any, which: str) -> dict[str, Any]:
    """Return the part of a rank none of whose experts got a row."""
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


def as_bytes(tensor: "torch.Tensor") -> "torch.Tensor":
    """View a tensor of one-byte elements as int8, bit patterns unchanged."""
    import torch

    return tensor.detach().view(torch.int8)
