"""Attention of the target image's rows over a cached prefix and themselves; nothing is masked.

    o[i] = sum over j of softmax_j(q[i] . K[j] * D**-0.5) * V[j]        for each head
    K = k_prefix followed by k, V = v_prefix followed by v

The prefix rows (text and condition images) were computed in the first denoising step and do not change; only
the target's queries are computed again, and each of them sees all P + T keys.

Rounding: scores, softmax and the weighted sum are float32; o is rounded to BF16 once.
"""

import torch

H = 32
D = 128
SCALE = D**-0.5

# Scores a step (one head, some query rows, all keys): 2**24 float32 = 64 MiB, and as much for their softmax.
# Everything else is smaller: in the largest sequence (6144 + 4096 + 256 rows) a head's K or V is
# 10496 * 128 * 4 B = 5 MiB.
SCORES = 2**24


def run(q, k_prefix, v_prefix, k, v):
    """Return o.

    q         bfloat16 [T, H, D]  target queries, normalised and rotated; the scale is not applied yet
    k_prefix  bfloat16 [P, H, D]  cached keys, normalised and rotated
    v_prefix  bfloat16 [P, H, D]  cached values
    k         bfloat16 [T, H, D]  target keys, normalised and rotated
    v         bfloat16 [T, H, D]  target values
    o         bfloat16 [T, H, D]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _attention(q, k_prefix, v_prefix, k, v)
    finally:
        torch.set_float32_matmul_precision(precision)


def _attention(q, k_prefix, v_prefix, k, v):
    T, P = q.shape[0], k_prefix.shape[0]
    assert q.shape == k.shape == v.shape == (T, H, D) and k_prefix.shape == v_prefix.shape == (P, H, D)
    rows = max(1, SCORES // max(1, P + T))
    o = torch.empty_like(q)
    for head in range(H):
        key = torch.cat([k_prefix[:, head], k[:, head]]).float()
        value = torch.cat([v_prefix[:, head], v[:, head]]).float()
        for first in range(0, T, rows):
            block = slice(first, first + rows)
            scores = (q[block, head].float() @ key.T).mul_(SCALE)
            o[block, head] = torch.softmax(scores, dim=-1) @ value
    return o
