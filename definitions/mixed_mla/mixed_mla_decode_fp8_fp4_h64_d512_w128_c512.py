"""Latent attention of decode tokens over an FP8 window and FP4 compressed latents, both paged, one softmax.

    s[h, j] = sm_scale * q[h] . k[j]     over the valid window and compressed slots of the token
    o[h]    = sum_j exp(s[h, j]) * k[j] / (sum_j exp(s[h, j]) + exp(attn_sink[h]))

Slot j is valid if j is below its row's length and the index is not -1. Key and value are the same dequantised
vector, shared by all heads. The sink stands for a zero value vector: -inf switches it off, +inf gives zeros.
A token without a valid slot gives zeros.

A page stores all payload rows, then all scale rows; its [P, R] shape is only a byte budget:
    FP8 page: P8 rows of 512 E4M3FN values, then P8 rows of 16 E8M0 scales, one per 32 values
    FP4 page: P4 rows of 256 bytes with two E2M1 codes each (element 2j in the low nibble, 2j + 1 in the high
              nibble), then P4 rows of 32 E4M3FN scales, one per 16 values

Rounding: dequantised values are exact in float32 (and in BF16); scores, softmax and the weighted sum are
float32; o is rounded to BF16 once.
"""

import torch

H = 64
D = 512
W = 128
C = 512
GROUP8 = 32  # values that share one E8M0 scale in an FP8 row
GROUP4 = 16  # values that share one E4M3FN scale in an FP4 row
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the low three bits of a code; bit 3 is the sign

# Tokens a step. 32 * 640 * 512 * 4 B = 40 MiB of keys in float32, below 200 MiB while they are gathered and
# dequantised. Only rows that a valid slot names are read, so nothing grows with B or with the pages.
TOKENS = 32


def run(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    """Return output.

    q          bfloat16 [B, H, D]                 rotated, the scale is not applied yet
    kv8_pages  int8     [N8, P8, D + D / 32]      FP8 pages of the sliding window
    kv4_pages  int8     [N4, P4, D / 2 + D / 16]  FP4 pages of the compressed latents
    indices8   int32    [B, W]                    page * P8 + offset, or -1 for an empty slot
    indices4   int32    [B, C]                    page * P4 + offset, or -1 for an empty slot
    length8    int32    [B]                       slots [0, length8) of indices8 are scanned
    length4    int32    [B]                       slots [0, length4) of indices4 are scanned
    attn_sink  float32  [H]                       natural-log weight of the zero value vector
    sm_scale   float                              512**-0.5
    output     bfloat16 [B, H, D]                 before the inverse rotation
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _attention(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale)
    finally:
        torch.set_float32_matmul_precision(precision)


def _attention(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    B = q.shape[0]
    assert q.shape == (B, H, D) and attn_sink.shape == (H,)
    assert indices8.shape == (B, W) and indices4.shape == (B, C)
    output = torch.empty(B, H, D, dtype=torch.bfloat16, device=q.device)
    for first in range(0, B, TOKENS):
        rows = slice(first, first + TOKENS)
        valid8, keys8 = _gathered(_fp8_rows, kv8_pages, indices8[rows], length8[rows])
        valid4, keys4 = _gathered(_fp4_rows, kv4_pages, indices4[rows], length4[rows])
        keys, valid = torch.cat((keys8, keys4), dim=1), torch.cat((valid8, valid4), dim=1)
        output[rows] = _softmax_sum(q[rows].float(), keys, valid, attn_sink, sm_scale)
    return output


def _gathered(dequantise, pages, indices, length):
    """(valid bool [n, J], keys float32 [n, J, D]) of n tokens; keys of invalid slots are zeros."""
    columns = torch.arange(indices.shape[1], device=indices.device)
    valid = (columns < length[:, None]) & (indices >= 0)
    keys = torch.zeros(*indices.shape, D, dtype=torch.float32, device=indices.device)
    keys[valid] = dequantise(pages, indices[valid].long())
    return valid, keys


def _page_rows(pages, slots, payload, scales):
    """Bytes of n slots: uint8 [n, payload] and [n, scales], the two parts of a row in bytes."""
    per_page = pages.shape[1]
    assert pages.shape[2] == payload + scales
    content = pages.view(torch.uint8).flatten(1)
    split = per_page * payload
    page, offset = slots // per_page, slots % per_page
    return (
        content[:, :split].unflatten(1, (per_page, payload))[page, offset],
        content[:, split:].unflatten(1, (per_page, scales))[page, offset],
    )


def _fp8_rows(pages, slots):
    """Dequantised FP8 rows: slots int64 [n] -> float32 [n, D]."""
    values, scale = _page_rows(pages, slots, D, D // GROUP8)
    powers = scale.view(torch.float8_e8m0fnu).float()
    return _scaled(values.view(torch.float8_e4m3fn).float(), powers, GROUP8)


def _fp4_rows(pages, slots):
    """Dequantised FP4 rows: slots int64 [n] -> float32 [n, D]."""
    codes, scale = _page_rows(pages, slots, D // 2, D // GROUP4)
    signed = E2M1 + tuple(-level for level in E2M1)
    levels = torch.tensor(signed, dtype=torch.float32, device=pages.device)
    values = torch.stack((levels[(codes & 15).long()], levels[(codes >> 4).long()]), dim=-1).flatten(-2)
    return _scaled(values, scale.view(torch.float8_e4m3fn).float(), GROUP4)


def _scaled(values, scale, group):
    """values float32 [n, D] times scale float32 [n, D / group], one for each group of neighbours."""
    return (values.unflatten(-1, (-1, group)) * scale[..., None]).flatten(-2)


def _softmax_sum(q, keys, valid, attn_sink, sm_scale):
    """Attention with a sink: q [n, H, D], keys [n, J, D], valid [n, J] -> float32 [n, H, D]."""
    scores = torch.bmm(q, keys.transpose(1, 2)) * sm_scale
    scores = scores.masked_fill(~valid[:, None], -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)  # no valid slot: every weight below is exp(-inf) = 0
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True) + torch.exp(attn_sink[:, None] - top)
    return torch.bmm(weights, keys) / total.masked_fill(total == 0.0, 1.0)
