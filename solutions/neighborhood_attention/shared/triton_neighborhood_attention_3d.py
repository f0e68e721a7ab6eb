"""3-D neighborhood attention in Triton: a box of queries against the box of keys that they see together.

Boundary: the whole definition. Adaptations: none; q, k, v and o are read and written as they lie. The box of
keys has one size everywhere: at borders it is shifted inward, as the windows are, so it never leaves the
grid. Keys outside a query's own window are masked by bits: a key has one bit set for each axis, a query all
those that its window does not cover. Where 31 bits do not hold the three axes, X gets a word of its own. The
words of the keys are a table that depends on the shape alone and is made in `prepare`.
Rounding: scores, softmax and sums are float32; the probabilities enter the second product in bfloat16.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes the starter workload, at 32 heads, and the
larger captured ones of all four windows.
"""

import torch
import triton
import triton.language as tl

from .constants import BLOCK_N, STAGES, WARPS, WINDOW, H

D = 64
LOG2E = tl.constexpr(1.4426950408889634)
# Box of queries: each side a power of two, the volume at least 64; from a sweep on an H200. The bits suffice for
# boxes of keys with T + Y <= 32 and X <= 31, or T + Y + X <= 31.
TILE = (2, 4, 8)


@triton.jit
def _load_block(rows, INTERPRET: tl.constexpr):
    """Load a block of rows; the interpreter has no bfloat16 products, so it gets float32."""
    block = tl.load(rows)
    return block.to(tl.float32) if INTERPRET else block


@triton.jit
def _window_bits(position, low, length, WINDOW: tl.constexpr, SHIFT: tl.constexpr):
    """Set the bits of the window of `position` in a box that starts at `low`: bit SHIFT + i for key low + i."""
    start = tl.minimum(tl.maximum(position - WINDOW // 2, 0), length - WINDOW)
    return ((1 << WINDOW) - 1) << (start - low + SHIFT)


@triton.jit
def _neighborhood(
    q, k, v, bits, o,
    T, Y, X, tiles_y, tiles_x,  # the grid, and its boxes of queries along Y and X
    H: tl.constexpr, D: tl.constexpr,
    WT: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr,  # window
    QT: tl.constexpr, QY: tl.constexpr, QX: tl.constexpr,  # box of queries
    KT: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,  # box of keys
    WORDS: tl.constexpr, BLOCK_N: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Attend one box of QT * QY * QX queries of one head; its keys lie in a box of KT * KY * KX."""
    tile, head, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    t0, y0, x0 = tile // (tiles_y * tiles_x) * QT, tile // tiles_x % tiles_y * QY, tile % tiles_x * QX
    low_t = tl.minimum(tl.maximum(t0 - WT // 2, 0), T - KT)
    low_y = tl.minimum(tl.maximum(y0 - WY // 2, 0), Y - KY)
    low_x = tl.minimum(tl.maximum(x0 - WX // 2, 0), X - KX)

    rows = tl.arange(0, QT * QY * QX)
    t, y, x = t0 + rows // (QY * QX), y0 + rows // QX % QY, x0 + rows % QX
    real = (t < T) & (y < Y) & (x < X)
    t, y, x = tl.minimum(t, T - 1), tl.minimum(y, Y - 1), tl.minimum(x, X - 1)
    window = _window_bits(t, low_t, T, WT, 0) | _window_bits(y, low_y, Y, WY, KT)
    if WORDS == 1:
        window |= _window_bits(x, low_x, X, WX, KT + KY)
    else:
        window_x = _window_bits(x, low_x, X, WX, 0)

    corner = (((sample * T + low_t) * Y + low_y) * X + low_x) * H * D + head * D
    k += corner
    v += corner
    channels = tl.arange(0, D)
    place = (((sample * T + t) * Y + y) * X + x) * H * D + head * D
    query = _load_block(q + place[:, None] + channels, INTERPRET)
    acc = tl.zeros((QT * QY * QX, D), tl.float32)
    peak = tl.full((QT * QY * QX,), -3e38, tl.float32)  # finite: a block may hide all its keys from a row
    mass = tl.zeros((QT * QY * QX,), tl.float32)
    for first in range(0, KT * KY * KX, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        n = tl.minimum(columns, KT * KY * KX - 1)
        position = (n // (KY * KX) * Y + n // KX % KY) * X + n % KX
        offsets = position.to(tl.int64)[:, None] * (H * D) + channels
        scores = tl.dot(query, tl.trans(_load_block(k + offsets, INTERPRET)))
        hidden = ~window[:, None] & tl.load(bits + columns)[None, :]
        if WORDS == 2:
            bits_x = bits + tl.cdiv(KT * KY * KX, BLOCK_N) * BLOCK_N
            hidden |= ~window_x[:, None] & tl.load(bits_x + columns)[None, :]
        scores = tl.where(hidden == 0, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * LOG2E)
        weights = tl.exp2(scores * LOG2E - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        values = _load_block(v + offsets, INTERPRET)
        acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None])
        mass = mass * shrink + tl.sum(weights, 1)
        peak = new_peak
    result = acc / mass[:, None]
    tl.store(o + place[:, None] + channels, result.to(o.dtype.element_ty), mask=real[:, None])


def run(q, k, v):
    """Attend q, k, v bfloat16 [B, T, Y, X, H, D] -> o bfloat16 of the same shape."""
    return prepare(q, k, v)()


def key_words(box, device):
    """Make int32 [words, keys of the box, padded to blocks]; padding has bit 31, which no window covers."""
    KT, KY, KX = box
    n = torch.arange(-(-KT * KY * KX // BLOCK_N) * BLOCK_N, device=device)
    t, y, x = n // (KY * KX), n // KX % KY, n % KX
    ty, joined = (1 << t) | (1 << KT + y), sum(box) < 32
    words = [ty | (1 << KT + KY + x)] if joined else [ty, 1 << x]
    words[-1] = torch.where(n < KT * KY * KX, words[-1], -(2**31))
    return torch.stack(words).to(torch.int32)


def prepare(q, k, v):
    B, *grid = q.shape[:4]
    tiles = [triton.cdiv(length, tile) for length, tile in zip(grid, TILE)]
    box = [min(length, tile + window - 1) for length, tile, window in zip(grid, TILE, WINDOW)]
    programs = (tiles[0] * tiles[1] * tiles[2], H, B)
    bits = key_words(box, q.device)
    interpret = q.device.type == "cpu"

    def launch():
        o = torch.empty_like(q)
        _neighborhood[programs](
            q,
            k,
            v,
            bits,
            o,
            *grid,
            tiles[1],
            tiles[2],
            H,
            D,
            *WINDOW,
            *TILE,
            *box,
            len(bits),
            BLOCK_N,
            interpret,
            num_warps=WARPS,
            num_stages=STAGES,
        )
        return o

    return launch
