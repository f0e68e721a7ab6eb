"""SGLang 0.5.23's expert router: projection with float32 logits, fused modality-aware gate, then a sort.

Engine call: `MoEGate.forward` (up to 16 rows `tiny_gemm_bf16(..., out_dtype=float32)`, above
`linear_bf16_fp32`, which is cuBLAS with float32 output) and `vision_topk`, that is `moe_fused_gate(...,
scoring_func="sqrtsoftplus", renormalize_epsilon=1e-20, sqrtsoftplus_log1p=True)`. Boundary: the whole
definition.
Adaptations: `is_image` stands in for the token ids and 1 for the image token's; the scaling factor is always
applied to the output (1.0 changes nothing); the engine's descending order is sorted to increasing ids by a
Triton kernel, weights follow. No row is padding. sm_100: the same calls, not run here.

The ordering is validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

TOPK = 6
IMAGE = 1  # what a true `is_image` holds as an integer
ROWS = 32


@triton.jit
def _order(best_ids, best_weights, ids, weights, M, TOPK: tl.constexpr, ROWS: tl.constexpr):
    """Write ids in increasing order and their weights with them: a column is the count of smaller ids."""
    row, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 8)
    place = row.to(tl.int64)[:, None] * TOPK + lane[None, :]
    real = (row < M)[:, None] & (lane < TOPK)[None, :]
    chosen = tl.load(best_ids + place, mask=real, other=1 << 30)
    column = tl.sum((chosen[:, None, :] < chosen[:, :, None]).to(tl.int32), 2)
    target = row.to(tl.int64)[:, None] * TOPK + column
    tl.store(ids + target, chosen, mask=real)
    tl.store(weights + target, tl.load(best_weights + place, mask=real, other=0.0), mask=real)


def run(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    """Return (topk_ids int32 [M, 6], topk_weights float32 [M, 6]). Inputs as in the definition."""
    return prepare(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor)()


def projection(hidden_states, weight):
    """Choose the engine's projection for this number of rows: a callable that returns float32 logits."""
    from sglang.kernels.ops.gemm.bf16_fp32 import linear_bf16_fp32
    from sglang.kernels.ops.gemm.tiny_gemm import tiny_gemm_bf16
    from sglang.srt.models.deepseek_common.utils import tiny_router_gemm_max_tokens

    most = tiny_router_gemm_max_tokens(
        num_experts=weight.shape[0], hidden_size=weight.shape[1], weight_dtype=weight.dtype
    )
    if hidden_states.shape[0] <= most:
        return lambda: tiny_gemm_bf16(hidden_states, weight, out_dtype=torch.float32, max_m=most)
    return lambda: linear_bf16_fp32(hidden_states, weight)


def prepare(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate

    project, tokens, M = projection(hidden_states, weight), is_image.view(torch.int8), hidden_states.shape[0]

    def launch():
        best_weights, best_ids = moe_fused_gate(
            project(),
            bias,
            topk=TOPK,
            scoring_func="sqrtsoftplus",
            renormalize=True,
            routed_scaling_factor=routed_scaling_factor,
            apply_routed_scaling_factor_on_output=True,
            bias_alt=bias_vl,
            input_ids=tokens,
            bias_alt_token_id=IMAGE,
            renormalize_epsilon=1e-20,
            sqrtsoftplus_log1p=True,
        )
        ids, weights = torch.empty_like(best_ids), torch.empty_like(best_weights)
        _order[(triton.cdiv(M, ROWS),)](best_ids, best_weights, ids, weights, M, TOPK, ROWS, num_warps=4)
        return ids, weights

    return launch
