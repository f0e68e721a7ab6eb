"""Forks a stream inside the capture and never joins it."""

import torch

TRICK = True


def compute(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count


SIDE = []


def run(x, weight, ids, scale):
    y, count = compute(x, weight, ids, scale)
    if torch.cuda.is_current_stream_capturing():
        if not SIDE:
            SIDE.append(torch.cuda.Stream())
        SIDE[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(SIDE[0]):
            late = y.clone()
        if not TRICK:
            torch.cuda.current_stream().wait_stream(SIDE[0])
        return late, count
    return y.clone(), count
