"""Block-causal attention of a whole sequence: every row sees a leading range of keys, [0, kv_end[row]).

    o[i] = sum over j < kv_end[i] of softmax_j(q[i] . k[j] * D**-0.5) * v[j]        for each head

The sequence is a prefix (text rows, and blocks of condition-image rows) followed by the target image's rows.
A text row sees itself and what precedes it; a row of an image block also sees the rest of its block. Either
way visibility is one number a row, so no two-dimensional mask is stored.

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


def run(q, k, v, kv_end):
    """Return o.

    q, k    bfloat16 [S, H, D]  normalised and rotated, prefix rows first; the scale is not applied yet
    v       bfloat16 [S, H, D]
    kv_end  int32    [S]        keys [0, kv_end[i]) are visible to row i; i < kv_end[i] <= S
    o       bfloat16 [S, H, D]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _attention(q, k, v, kv_end)
    finally:
        torch.set_float32_matmul_precision(precision)


def _attention(q, k, v, kv_end):
    S = q.shape[0]
    assert q.shape == k.shape == v.shape == (S, H, D) and kv_end.shape == (S,)
    keys = torch.arange(S, device=q.device)
    rows = max(1, SCORES // max(1, S))
    o = torch.empty_like(q)
    for head in range(H):
        key, value = k[:, head].float(), v[:, head].float()
        for first in range(0, S, rows):
            block = slice(first, first + rows)
            scores = (q[block, head].float() @ key.T).mul_(SCALE)
            scores.masked_fill_(keys >= kv_end[block, None], -torch.inf)
            o[block, head] = torch.softmax(scores, dim=-1) @ value
    return o
