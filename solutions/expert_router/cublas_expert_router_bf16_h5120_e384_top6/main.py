"""Expert router: cuBLAS projection with float32 output, then one Triton kernel for the rest.

Library call: `torch.mm(hidden, weight.t(), out_dtype=torch.float32)` (torch >= 2.9; cuBLAS, BF16 operands,
float32 sums and output). Boundary: the whole definition. Adaptation: none. The gate is that of the portable
Triton solution of this definition. sm_100: the same calls, not run here.

The gate is validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

TOPK = 6
GATE_WARPS = 1


@triton.jit
def _log1p(z):
    """Compute log(1 + z) for z in [0, 1] to float32 accuracy: 2 artanh(z / (2 + z)) as a series."""
    s = z / (2.0 + z)
    t = s * s
    tail = 1 / 7 + t * (1 / 9 + t * (1 / 11 + t * (1 / 13)))
    return 2.0 * s * (1.0 + t * (1 / 3 + t * (1 / 5 + t * tail)))


@triton.jit
def _gate(
    logits, bias, bias_vl, is_image,
    ids, weights,  # written
    factor, M,
    E: tl.constexpr, LANES: tl.constexpr, TOPK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Gate one token: sum the shares of its logits, score, select and write the experts in increasing order."""
    row, expert = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    real = expert < E
    logit = tl.zeros((LANES,), tl.float32)
    for split in tl.static_range(SPLITS):
        logit += tl.load(logits + (split * M + row) * E + expert, mask=real, other=0.0)
    score = tl.sqrt_rn(tl.maximum(logit, 0.0) + _log1p(tl.exp(-tl.abs(logit))))
    image = tl.load(is_image + row) != 0
    rank = score + tl.where(
        image, tl.load(bias_vl + expert, mask=real, other=0.0), tl.load(bias + expert, mask=real, other=0.0)
    )
    rank = tl.where(rank != rank, float("inf"), tl.where(rank == 0.0, 0.0, rank))  # NaN first; -0 ties with 0
    bits = rank.to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)  # integers in the order of the floats
    key = tl.where(real, ordered * LANES + (LANES - 1 - expert), -(1 << 62))  # equal ranks: lower id first
    last = tl.max(key, 0)
    for _ in tl.static_range(TOPK - 1):
        last = tl.max(tl.where(key < last, key, -(1 << 62)), 0)
    chosen = key >= last
    column = tl.cumsum(chosen.to(tl.int32), 0) - 1
    total = tl.sum(tl.where(chosen, score, 0.0), 0)
    tl.store(ids + row * TOPK + column, expert, mask=chosen)
    tl.store(weights + row * TOPK + column, score / (total + 1e-20) * factor, mask=chosen)


def run(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    """Return (topk_ids int32 [M, 6], topk_weights float32 [M, 6]). Inputs as in the definition."""
    return prepare(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor)()


def prepare(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    M, E = hidden_states.shape[0], weight.shape[0]
    image = is_image.view(torch.uint8)

    def launch():
        ids = torch.empty(M, TOPK, dtype=torch.int32, device=hidden_states.device)
        weights = torch.empty(M, TOPK, dtype=torch.float32, device=hidden_states.device)
        logits = torch.mm(hidden_states, weight.t(), out_dtype=torch.float32)
        _gate[(M,)](
            logits,
            bias,
            bias_vl,
            image,
            ids,
            weights,
            routed_scaling_factor,
            M,
            E,
            triton.next_power_of_2(E),
            TOPK,
            1,
            num_warps=GATE_WARPS,
        )
        return ids, weights

    return launch
