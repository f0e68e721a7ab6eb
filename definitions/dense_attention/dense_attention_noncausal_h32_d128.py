"""Dense attention without a mask: every query sees every key of its sample.

    o[b, i] = sum over j of softmax_j(q[b, i] . k[b, j] * D**-0.5) * v[b, j]        for each head

Queries and keys may come from different sequences (audio, video, prompt), so Nq and Nk are independent.

Rounding: scores, softmax and the weighted sum are float32; o is rounded to BF16 once.
"""

import torch

H = 32
D = 128

SCALE = D**-0.5
# Scores a step (one sample, one head, some query rows, all keys): 2**24 float32 = 64 MiB, and as much for
# their softmax, however many scores a call has (B=4, Nq=Nk=2560 has 8.4e8). A head's K or V is Nk * D * 4 B:
# 1.25 MiB for Nk=2560, D=128.
SCORES = 2**24


def run(q, k, v):
    """Return o.

    q  bfloat16 [B, Nq, H, D]  normalised, rotated unless k holds prompt rows; the scale is not applied yet
    k  bfloat16 [B, Nk, H, D]  normalised, rotated unless it holds prompt rows
    v  bfloat16 [B, Nk, H, D]
    o  bfloat16 [B, Nq, H, D]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _attention(q, k, v)
    finally:
        torch.set_float32_matmul_precision(precision)


def _attention(q, k, v):
    B, Nq, Nk = q.shape[0], q.shape[1], k.shape[1]
    assert q.shape == (B, Nq, H, D) and k.shape == v.shape == (B, Nk, H, D)
    rows = max(1, SCORES // max(1, Nk))
    o = torch.empty_like(q)
    for sample in range(B):
        for head in range(H):
            key, value = k[sample, :, head].float(), v[sample, :, head].float()
            for first in range(0, Nq, rows):
                block = slice(first, first + rows)
                scores = (q[sample, block, head].float() @ key.T).mul_(SCALE)
                o[sample, block, head] = torch.softmax(scores, dim=-1) @ value
    return o
