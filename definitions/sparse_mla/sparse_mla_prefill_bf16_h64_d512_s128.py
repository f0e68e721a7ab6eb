"""Sparse latent attention of a prefill chunk: a query row attends to the workspace rows its slots name.

    s[h, j] = sm_scale * q[h] . kv[indices[j]]     over the valid slots j of the row
    o[h]    = sum_j exp(s[h, j]) * kv[indices[j]] / (sum_j exp(s[h, j]) + exp(attn_sink[h]))

A slot is valid if j < topk_length and 0 <= index < T; a workspace row named twice counts twice. Key and value
are the same vector, shared by all heads. The sink stands for a zero value vector: -inf switches it off, +inf
gives zeros. A query row without a valid slot gives zeros.

Rounding: scores, softmax and the weighted sum are float32; o is rounded to BF16 once.
"""

import torch

H = 64
D = 512
K_SLOTS = 128

# Query rows a step. 64 * 640 * 512 * 4 B = 80 MiB of gathered keys in float32, 120 MiB more while they are
# gathered and widened, 10 MiB of scores. Nothing grows with S or with the workspace (T = 1e6 rows are 1 GiB).
ROWS = 64


def run(q, kv, indices, topk_length, attn_sink, sm_scale):
    """Return output.

    q            bfloat16 [S, H, D]        rotated, the scale is not applied yet
    kv           bfloat16 [T, 1, D]        workspace of dequantised latents; key = value
    indices      int32    [S, 1, K_SLOTS]  workspace row, or -1 for an empty slot
    topk_length  int32    [S]              slots [0, topk_length) of the row are scanned
    attn_sink    float32  [H]              natural-log weight of the zero value vector
    sm_scale     float                     512**-0.5
    output       bfloat16 [S, H, D]        before the inverse rotation
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _attention(q, kv, indices, topk_length, attn_sink, sm_scale)
    finally:
        torch.set_float32_matmul_precision(precision)


def _attention(q, kv, indices, topk_length, attn_sink, sm_scale):
    S, T = q.shape[0], kv.shape[0]
    assert q.shape == (S, H, D) and kv.shape == (T, 1, D) and attn_sink.shape == (H,)
    assert indices.shape == (S, 1, K_SLOTS) and topk_length.shape == (S,)
    columns = torch.arange(K_SLOTS, device=q.device)
    output = torch.empty(S, H, D, dtype=torch.bfloat16, device=q.device)
    for first in range(0, S, ROWS):
        rows = slice(first, first + ROWS)
        slots = indices[rows, 0].long()
        valid = (columns < topk_length[rows, None]) & (slots >= 0) & (slots < T)
        keys = torch.zeros(*slots.shape, D, dtype=torch.float32, device=q.device)
        keys[valid] = kv[slots[valid], 0].float()
        output[rows] = _softmax_sum(q[rows].float(), keys, valid, attn_sink, sm_scale)
    return output


def _softmax_sum(q, keys, valid, attn_sink, sm_scale):
    """Attention with a sink: q [n, H, D], keys [n, J, D], valid [n, J] -> float32 [n, H, D]."""
    scores = torch.bmm(q, keys.transpose(1, 2)) * sm_scale
    scores = scores.masked_fill(~valid[:, None], -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)  # no valid slot: every weight below is exp(-inf) = 0
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True) + torch.exp(attn_sink[:, None] - top)
    return torch.bmm(weights, keys) / total.masked_fill(total == 0.0, 1.0)
