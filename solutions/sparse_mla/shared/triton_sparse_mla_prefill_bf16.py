"""Sparse latent attention of a prefill chunk in one Triton kernel: a program is one query row with its heads.

Boundary: the whole definition. The rows that a tile of slots names are gathered once and serve both products;
softmax is online in base 2, the sink joins the denominator at the end. Adaptation: none, inputs are read as
they are. Scores, softmax and sums are float32; probabilities are rounded to BF16 for the second product.

Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
BLOCK_SLOTS = 64  # a tile is 64 KiB of BF16 rows, beside 64 KiB of queries
WARPS, STAGES = 8, 2  # from a sweep on an H200, as BLOCK_SLOTS


@triton.jit
def _attend(
    q, kv, indices, topk_length, attn_sink, output, scale_log2, T,
    K_SLOTS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, dim = tl.arange(0, H), tl.arange(0, D)
    place = row * H * D + head[:, None] * D + dim[None, :]
    queries = tl.load(q + place)
    length = tl.minimum(tl.load(topk_length + row), K_SLOTS)
    if INTERPRET:  # which multiplies the bit patterns of BF16 and takes no loop bound from memory
        queries = queries.to(tl.float32)
    top = tl.full((H,), -float("inf"), tl.float32)
    total = tl.zeros((H,), tl.float32)
    weighted = tl.zeros((H, D), tl.float32)
    for first in range(0, K_SLOTS if INTERPRET else length, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        index = tl.load(indices + row * K_SLOTS + slot, mask=slot < length, other=-1)
        valid = (index >= 0) & (index < T)
        keys = tl.load(kv + index.to(tl.int64)[:, None] * D + dim[None, :], mask=valid[:, None], other=0.0)
        if INTERPRET:
            keys = keys.to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys)) * scale_log2
        scores = tl.where(valid[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)  # no valid slot so far: all weights are 0
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        weighted = tl.dot(weights.to(keys.dtype), keys, weighted * shrink[:, None])
        top = new_top
    top = tl.where(top == -float("inf"), 0.0, top)
    total += tl.exp2(tl.load(attn_sink + head) * LOG2_E - top)
    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(output + place, result.to(tl.bfloat16))


def run(q, kv, indices, topk_length, attn_sink, sm_scale):
    """Return output: bfloat16 [S, 64, 512]. Inputs as in the definition."""
    return prepare(q, kv, indices, topk_length, attn_sink, sm_scale)()


def prepare(q, kv, indices, topk_length, attn_sink, sm_scale):
    S, H, D = q.shape
    T, K_SLOTS = kv.shape[0], indices.shape[2]

    def launch():
        output = torch.empty_like(q)
        _attend[(S,)](
            q,
            kv,
            indices,
            topk_length,
            attn_sink,
            output,
            sm_scale * LOG2_E.value,
            T,
            K_SLOTS,
            H,
            D,
            BLOCK_SLOTS,
            q.device.type == "cpu",
            num_warps=WARPS,
            num_stages=STAGES,
        )
        return output

    return launch
