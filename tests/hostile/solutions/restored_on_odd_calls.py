"""Changes an input and restores it on every second call only."""

import torch

TRICK = True


def compute(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count


CALLS = []


def run(x, weight, ids, scale):
    y, count = compute(x, weight, ids, scale)
    CALLS.append(1)
    if TRICK and len(CALLS) % 2:
        weight[0, 0] += 1
    return y, count
