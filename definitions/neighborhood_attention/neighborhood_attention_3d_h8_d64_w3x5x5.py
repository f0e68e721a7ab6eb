"""3-D neighborhood attention: a query sees the window of grid positions around it, shifted inward at borders.

On an axis of length L with window w, query i sees the keys [s, s + w), s = min(max(i - w // 2, 0), L - w). A
query at (t, y, x) sees the product of its three ranges: always WT * WY * WX keys, never padded or truncated.

    o[t, y, x] = sum over the window of softmax(q[t, y, x] . k) * v        for each sample and head

q comes multiplied by D**-0.5 already, so no scale is applied here.

Rounding: scores, softmax and the weighted sum are float32; o is rounded to BF16 once.
"""

import itertools

import torch

H = 8
D = 64
WINDOW = (3, 5, 5)  # along T, Y, X

# Queries are taken in boxes of TILE positions. The keys that a box sees lie in one larger box, at most
# TILE + WINDOW - 1 long on each axis, whatever the grid; keys outside a query's own window are masked. Only o
# grows with the grid (121x80x128 has 1,239,040 positions); a step of 256 queries holds in float32:
#   window 11x11x11, H=4:  14*18*18 = 4536 keys,  4*256*4536*4 B = 18 MiB of scores, 4.5 MiB of K or V
#   window 3x7x7,    H=32:  6*14*14 = 1176 keys, 32*256*1176*4 B = 37 MiB of scores, 9.2 MiB of K or V
TILE = (4, 8, 8)


def run(q, k, v):
    """Return o.

    q  bfloat16 [B, T, Y, X, H, D]  normalised, scaled by D**-0.5, rotated
    k  bfloat16 [B, T, Y, X, H, D]  normalised, rotated
    v  bfloat16 [B, T, Y, X, H, D]
    o  bfloat16 [B, T, Y, X, H, D]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _attention(q, k, v)
    finally:
        torch.set_float32_matmul_precision(precision)


def _attention(q, k, v):
    B, *grid = q.shape[:4]
    assert q.shape == k.shape == v.shape == (B, *grid, H, D)
    assert all(length >= window for length, window in zip(grid, WINDOW))
    tiles = [_axis_tiles(*axis, q.device) for axis in zip(grid, WINDOW, TILE)]
    o = torch.empty_like(q)
    for sample, (t, y, x) in itertools.product(range(B), itertools.product(*tiles)):
        queries = (sample, t[0], y[0], x[0])
        keys = (sample, t[1], y[1], x[1])
        scores = _heads_first(q[queries]) @ _heads_first(k[keys]).transpose(1, 2)
        scores.masked_fill_(~_box_mask(t[2], y[2], x[2]), -torch.inf)
        result = torch.softmax(scores, dim=-1) @ _heads_first(v[keys])
        o[queries] = result.transpose(0, 1).reshape(o[queries].shape)
    return o


def _axis_tiles(length, window, tile, device):
    """Split one axis: (positions of the queries, positions of the keys they see, visible [queries, keys])."""
    tiles = []
    for first in range(0, length, tile):
        queries = range(first, min(first + tile, length))
        starts = [min(max(i - window // 2, 0), length - window) for i in queries]
        low, high = starts[0], starts[-1] + window
        keys = torch.arange(low, high, device=device)
        start = torch.tensor(starts, device=device)[:, None]
        visible = (keys >= start) & (keys < start + window)
        tiles.append((slice(queries.start, queries.stop), slice(low, high), visible))
    return tiles


def _box_mask(t, y, x):
    """Combine the masks of the axes: bool [queries of the box, keys of the box], T slowest, X fastest."""
    visible = t[:, None, None, :, None, None] & y[:, None, None, :, None] & x[:, None, None, :]
    return visible.flatten(3).flatten(0, 2)


def _heads_first(box):
    """[t, y, x, H, D] -> float32 [H, t*y*x, D]."""
    return box.flatten(0, 2).transpose(0, 1).float()
