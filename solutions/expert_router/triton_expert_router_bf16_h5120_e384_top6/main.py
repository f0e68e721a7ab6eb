"""Expert router in two Triton kernels: a split-K projection, then the selection of each token.

Boundary: the whole definition. The projection writes float32 shares of the logits, one per part of the
reduction; products of BF16 operands are exact and sums are float32. The gate adds the shares in a fixed order
and picks six experts by integer keys that hold rank and id, so that equal ranks fall as the definition says.
The selected experts are written through a running count, which leaves their ids sorted. Adaptation: none.

Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

TOPK = 6
# (rows up to, BLOCK_M, BLOCK_N, BLOCK_K, shares of the reduction, warps, stages); the last takes any rest.
# Not chosen by a sweep.
CONFIGURATIONS = (
    (16, 16, 64, 128, 20, 4, 2),
    (64, 64, 64, 128, 20, 4, 2),
    (256, 64, 128, 64, 10, 4, 4),
    (1024, 128, 128, 64, 5, 8, 4),
    (4096, 128, 128, 64, 2, 8, 3),
)
GATE_WARPS = 1


@triton.jit
def _project(
    hidden, weight, shares, M,
    H: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = split * (H // SPLITS) + tl.arange(0, BLOCK_K)
    inside = row < M
    a_place = hidden + row.to(tl.int64)[:, None] * H + k[None, :]
    b_place = weight + expert[:, None] * H + k[None, :]
    logits = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, H // SPLITS, BLOCK_K):
        a = tl.load(a_place + step, mask=inside[:, None], other=0.0)
        b = tl.load(b_place + step)
        if INTERPRET:  # which multiplies the bit patterns of BF16
            a, b = a.to(tl.float32), b.to(tl.float32)
        logits = tl.dot(a, tl.trans(b), logits)
    place = (split * M + row).to(tl.int64)[:, None] * E + expert[None, :]
    tl.store(shares + place, logits, mask=inside[:, None])


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


def configuration(rows):
    return next((row[1:] for row in CONFIGURATIONS if rows <= row[0]), CONFIGURATIONS[-1][1:])


def prepare(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    (M, H), E = hidden_states.shape, weight.shape[0]
    block_m, block_n, block_k, splits, warps, stages = configuration(M)
    shares = torch.empty(splits, M, E, dtype=torch.float32, device=hidden_states.device)
    image, interpret = is_image.view(torch.uint8), hidden_states.device.type == "cpu"

    def launch():
        ids = torch.empty(M, TOPK, dtype=torch.int32, device=hidden_states.device)
        weights = torch.empty(M, TOPK, dtype=torch.float32, device=hidden_states.device)
        _project[(E // block_n, triton.cdiv(M, block_m), splits)](
            hidden_states,
            weight,
            shares,
            M,
            H,
            E,
            block_m,
            block_n,
            block_k,
            splits,
            interpret,
            num_warps=warps,
            num_stages=stages,
        )
        _gate[(M,)](
            shares,
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
            splits,
            num_warps=GATE_WARPS,
        )
        return ids, weights

    return launch
