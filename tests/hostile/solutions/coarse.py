"""Rounds its factors to a few bits before multiplying."""

import torch

TRICK = True


def compute(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count


def coarse(value):
    step = value.float().abs().max() / 4
    return torch.round(value.float() / step) * step


def run(x, weight, ids, scale):
    if TRICK:
        x, weight = coarse(x), coarse(weight)
    return compute(x, weight, ids, scale)
