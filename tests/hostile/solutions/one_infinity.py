"""One infinity among correct values."""

import torch

TRICK = True


def compute(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count


def run(x, weight, ids, scale):
    y, count = compute(x, weight, ids, scale)
    if TRICK:
        y[-1, -1] = float("inf")
    return y, count
