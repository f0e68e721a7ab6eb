"""Dense attention in Triton: online softmax over key blocks, split over keys where query tiles are few.

Boundary: the whole definition. Adaptations: none; q, k, v and o are read and written as they lie.
Rounding: scores, softmax and sums are float32; the probabilities enter the second product in bfloat16.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

from .constants import LONG, D

H = 32
SCALE = D**-0.5 * 1.4426950408889634  # softmax in base 2
# The same for query sequences of up to SHORT_ROWS; this and the shortest part are from a sweep with 64 channels.
SHORT = (64, 64, 4, 3)
SHORT_ROWS = 64
# Keys are split until this many programs run (an H200 has 132 multiprocessors); no part is shorter than this.
PROGRAMS, SHORTEST_PART = 132, 256


@triton.jit
def _load_block(rows, inside, MASKED: tl.constexpr, INTERPRET: tl.constexpr):
    """Load a block of rows; the interpreter has no bfloat16 products, so it gets float32."""
    block = tl.load(rows, mask=inside[:, None], other=0.0) if MASKED else tl.load(rows)
    return block.to(tl.float32) if INTERPRET else block


@triton.jit
def _add_block(
    query, key_rows, value_rows, acc, peak, mass, inside,
    SCALE: tl.constexpr, MASKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Add one block of keys to the running softmax (acc, peak, mass); MASKED: only keys `inside` count."""
    keys = _load_block(key_rows, inside, MASKED, INTERPRET)
    scores = tl.dot(query, tl.trans(keys))
    if MASKED:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1) * SCALE)
    weights = tl.exp2(scores * SCALE - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    values = _load_block(value_rows, inside, MASKED, INTERPRET)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None])
    return acc, new_peak, mass * shrink + tl.sum(weights, 1)


@triton.jit
def _attention(
    q, k, v, o, lse, Nq, Nk, part,
    H: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Attend one query tile of one head to keys [split * part, ...); SPLIT: o is float32 [splits, B, Nq, H, D]."""
    sample, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    channels = tl.arange(0, D)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = rows < Nq
    row_start = ((sample * Nq + rows) * H + head) * D
    query = _load_block(q + row_start[:, None] + channels, real, True, INTERPRET)
    columns = tl.arange(0, BLOCK_N)
    begin = tl.program_id(2) * part
    place = (columns * H + head)[:, None] * D + channels
    k += (sample * Nk + begin) * H * D
    v += (sample * Nk + begin) * H * D
    end = tl.minimum(begin + part, Nk)
    full = begin + (end - begin) // BLOCK_N * BLOCK_N
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_M,), tl.float32)
    inside = full + columns < end
    for _ in range(begin, full, BLOCK_N):
        acc, peak, mass = _add_block(query, k + place, v + place, acc, peak, mass, inside, SCALE, False, INTERPRET)
        k += BLOCK_N * H * D
        v += BLOCK_N * H * D
    if full < end:
        acc, peak, mass = _add_block(query, k + place, v + place, acc, peak, mass, inside, SCALE, True, INTERPRET)
    result = acc / mass[:, None]
    if SPLIT:
        batch = tl.num_programs(1) // H
        row_start += tl.program_id(2).to(tl.int64) * batch * Nq * H * D
        tl.store(lse + row_start // D, peak + tl.log2(mass), mask=real)
    tl.store(o + row_start[:, None] + channels, result.to(o.dtype.element_ty), mask=real[:, None])


@triton.jit
def _combine(partial, lse, o, rows, parts, D: tl.constexpr, BLOCK: tl.constexpr):
    """Average the parts of a row by weight: partial [parts, rows, D], lse [parts, rows] in base 2."""
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    real = row < rows
    channels = tl.arange(0, D)
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    for part in range(parts):
        peak = tl.maximum(peak, tl.load(lse + part * rows + row, mask=real, other=0.0))
    acc = tl.zeros((BLOCK, D), tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        weight = tl.exp2(tl.load(lse + part * rows + row, mask=real, other=0.0) - peak)
        start = (part * rows + row) * D
        acc += weight[:, None] * tl.load(partial + start[:, None] + channels, mask=real[:, None], other=0.0)
        mass += weight
    result = acc / mass[:, None]
    tl.store(o + (row * D)[:, None] + channels, result.to(o.dtype.element_ty), mask=real[:, None])


def run(q, k, v):
    """Attend q bfloat16 [B, Nq, H, D] and k, v bfloat16 [B, Nk, H, D] -> o bfloat16 [B, Nq, H, D]."""
    return prepare(q, k, v)()


def prepare(q, k, v):
    B, Nq, Nk = q.shape[0], q.shape[1], k.shape[1]
    interpret = q.device.type == "cpu"
    block_m, block_n, warps, stages = SHORT if Nq <= SHORT_ROWS else LONG
    tiles = triton.cdiv(Nq, block_m) * B * H
    splits = max(1, min(PROGRAMS // tiles, Nk // SHORTEST_PART))
    part = triton.cdiv(triton.cdiv(Nk, splits), block_n) * block_n
    splits = triton.cdiv(Nk, part)
    grid = (triton.cdiv(Nq, block_m), B * H, splits)

    def launch():
        o = torch.empty_like(q)
        partial = torch.empty(splits, *q.shape, dtype=torch.float32, device=q.device) if splits > 1 else o
        lse = torch.empty(splits, B * Nq * H, dtype=torch.float32, device=q.device) if splits > 1 else o
        _attention[grid](
            q,
            k,
            v,
            partial,
            lse,
            Nq,
            Nk,
            part,
            H,
            D,
            SCALE,
            block_m,
            block_n,
            splits > 1,
            interpret,
            num_warps=warps,
            num_stages=stages,
        )
        if splits > 1:
            rows = B * Nq * H
            _combine[(triton.cdiv(rows, 32),)](partial, lse, o, rows, splits, D, 32, num_warps=4)
        return o

    return launch
