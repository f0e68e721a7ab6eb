"""Attention over cached and own keys in Triton: one pass over two tensors, which are never joined in memory.

Boundary: the whole definition. Adaptations: none.
Rounding: scores, softmax and sums are float32; the probabilities enter the second product in bfloat16, in the
masked last block of a tensor as two bfloat16 terms.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

H = 32
D = 128
SCALE = D**-0.5 * 1.4426950408889634  # softmax in base 2
# Queries per tile, keys per block and per masked block, warps, stages; from a sweep on an H200 at 4096 rows.
BLOCK_M, BLOCK_N, MASKED_N, WARPS, STAGES = 64, 64, 64, 4, 3


@triton.jit
def _load_block(rows, inside, MASKED: tl.constexpr, INTERPRET: tl.constexpr):
    """Load a block of rows; the interpreter has no bfloat16 products, so it gets float32."""
    block = tl.load(rows, mask=inside[:, None], other=0.0) if MASKED else tl.load(rows)
    return block.to(tl.float32) if INTERPRET else block


@triton.jit
def _add_block(
    query, key_rows, value_rows, acc, peak, mass, columns, bound, length,
    SCALE: tl.constexpr, MASKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Add one block of keys to the running softmax (acc, peak, mass); MASKED: row i has columns < bound."""
    keys = _load_block(key_rows, columns < length, MASKED, INTERPRET)
    scores = tl.dot(query, tl.trans(keys))
    if MASKED:
        scores = tl.where(columns[None, :] < bound[:, None], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1) * SCALE)
    weights = tl.exp2(scores * SCALE - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    values = _load_block(value_rows, columns < length, MASKED, INTERPRET)
    rounded = weights.to(values.dtype)
    acc = tl.dot(rounded, values, acc * shrink[:, None])
    if MASKED and not INTERPRET:
        acc = tl.dot((weights - rounded).to(values.dtype), values, acc)
    return acc, new_peak, mass * shrink + tl.sum(weights, 1)


@triton.jit
def _add_segment(
    query, k, v, acc, peak, mass, bound, unmasked, stop, length, head,
    H: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED_N: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Add keys [0, stop) of one tensor of `length` rows; those below `unmasked` are visible to every row."""
    channels = tl.arange(0, D)
    columns = tl.arange(0, BLOCK_N)
    place = (columns * H + head)[:, None] * D + channels
    full = unmasked // BLOCK_N * BLOCK_N
    for _ in range(0, full, BLOCK_N):
        acc, peak, mass = _add_block(
            query, k + place, v + place, acc, peak, mass, columns, bound, length, SCALE, False, INTERPRET
        )
        k += BLOCK_N * H * D
        v += BLOCK_N * H * D
    columns = tl.arange(0, MASKED_N)
    place = (columns * H + head)[:, None] * D + channels
    for first in tl.range(full, stop, MASKED_N, num_stages=1):
        acc, peak, mass = _add_block(
            query, k + place, v + place, acc, peak, mass, first + columns, bound, length, SCALE, True, INTERPRET
        )
        k += MASKED_N * H * D
        v += MASKED_N * H * D
    return acc, peak, mass


@triton.jit
def _attention(
    q, k_prefix, v_prefix, k, v, o, T, P,
    H: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED_N: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Attend one query tile of one head."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = rows < T
    start = (rows.to(tl.int64) * H + head) * D
    channels = tl.arange(0, D)
    query = _load_block(q + start[:, None] + channels, real, True, INTERPRET)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_M,), tl.float32)
    acc, peak, mass = _add_segment(
        query,
        k_prefix,
        v_prefix,
        acc,
        peak,
        mass,
        rows * 0 + P,
        P,
        P,
        P,
        head,
        H,
        D,
        SCALE,
        BLOCK_N,
        MASKED_N,
        INTERPRET,
    )
    acc, peak, mass = _add_segment(
        query, k, v, acc, peak, mass, rows * 0 + T, T, T, T, head, H, D, SCALE, BLOCK_N, MASKED_N, INTERPRET
    )
    result = acc / mass[:, None]
    tl.store(o + start[:, None] + channels, result.to(o.dtype.element_ty), mask=real[:, None])


def run(q, k_prefix, v_prefix, k, v):
    """Attend q, k, v bfloat16 [T, H, D] and k_prefix, v_prefix bfloat16 [P, H, D] -> o bfloat16 [T, H, D]."""
    return prepare(q, k_prefix, v_prefix, k, v)()


def prepare(q, k_prefix, v_prefix, k, v):
    T, P = q.shape[0], k_prefix.shape[0]
    grid = (triton.cdiv(T, BLOCK_M), H)
    interpret = q.device.type == "cpu"

    def launch():
        o = torch.empty_like(q)
        _attention[grid](
            q,
            k_prefix,
            v_prefix,
            k,
            v,
            o,
            T,
            P,
            H,
            D,
            SCALE,
            BLOCK_M,
            BLOCK_N,
            MASKED_N,
            interpret,
            num_warps=WARPS,
            num_stages=STAGES,
        )
        return o

    return launch
