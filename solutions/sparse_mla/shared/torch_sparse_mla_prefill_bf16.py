"""Sparse latent attention in plain PyTorch: gather the named rows of some queries, then two float32 products.

Boundary: the whole definition. Adaptation: none. Validated on CPU.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import torch

ROWS = 64  # query rows per step: with 640 slots their gathered float32 keys are 80 MiB


def run(q, kv, indices, topk_length, attn_sink, sm_scale):
    """Return output: bfloat16 [S, 64, 512]. Inputs as in the definition."""
    T, slot = kv.shape[0], torch.arange(indices.shape[2], device=q.device)
    if T == 0:  # every slot is empty
        return torch.zeros_like(q)
    output = torch.empty_like(q)
    for rows in torch.arange(q.shape[0], device=q.device).split(ROWS):
        at = indices[rows, 0]
        empty = (slot >= topk_length[rows, None]) | (at < 0) | (at >= T)
        keys = kv[at.masked_fill(empty, 0), 0].masked_fill(empty[:, :, None], 0.0).float()
        scores = q[rows].float() @ keys.mT * sm_scale
        scores.masked_fill_(empty[:, None], -torch.inf)
        total = torch.logaddexp(scores.logsumexp(-1), attn_sink)[:, :, None]
        weights = (scores - total).exp().masked_fill(empty[:, None], 0.0)
        output[rows] = (weights @ keys).bfloat16()
    return output
