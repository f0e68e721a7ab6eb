"""Asks for a persisting L2 carve-out: allowed, but reset before every timed launch."""

import ctypes

import torch

TRICK = True


def compute(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count


def keep_l2():
    if TRICK:
        ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(6, ctypes.c_size_t(2**25))


def run(x, weight, ids, scale):
    keep_l2()
    return compute(x, weight, ids, scale)


def prepare(x, weight, ids, scale):
    keep_l2()
    return lambda: compute(x, weight, ids, scale)
