"""Moves itself to another scheduling class."""

import os

import torch

TRICK = True


def compute(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count


def run(x, weight, ids, scale):
    if TRICK:
        # One that needs no privilege; SCHED_FIFO is what a cheat that runs as root would take.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return compute(x, weight, ids, scale)
