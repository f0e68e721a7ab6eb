"""Latent decode attention over FP8 and FP4 pages in plain PyTorch: dequantise the named slots, then attend.

Boundary: the whole definition. Adaptation: none. Run on CPU and on an H200 (torch 2.14.1): passes its starter
workloads and the larger captured ones; right with seeded inputs of up to 200 tokens.
"""

import torch

D = 512
TOKENS = 64  # tokens per step: their dequantised float32 keys are 80 MiB


def run(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    """Return output: bfloat16 [B, 64, 512]. Inputs as in the definition."""
    output = torch.empty_like(q)
    for rows in torch.arange(q.shape[0], device=q.device).split(TOKENS):
        empty8, keys8 = gather(fp8_rows, kv8_pages, indices8[rows], length8[rows])
        empty4, keys4 = gather(fp4_rows, kv4_pages, indices4[rows], length4[rows])
        keys, empty = torch.cat((keys8, keys4), 1), torch.cat((empty8, empty4), 1)
        scores = q[rows].float() @ keys.mT * sm_scale
        scores.masked_fill_(empty[:, None], -torch.inf)
        total = torch.logaddexp(scores.logsumexp(-1), attn_sink)[:, :, None]
        weights = (scores - total).exp().masked_fill(empty[:, None], 0.0)
        output[rows] = (weights @ keys).bfloat16()
    return output


def gather(dequantise, pages, indices, length):
    """Gather (empty bool [n, J], keys float32 [n, J, 512]); keys of empty slots are zeros."""
    slot = torch.arange(indices.shape[1], device=indices.device)
    empty = (slot >= length[:, None]) | (indices < 0)
    keys = torch.zeros(*indices.shape, D, device=indices.device)
    if pages.shape[0]:
        keys = dequantise(pages, indices.masked_fill(empty, 0)).masked_fill(empty[:, :, None], 0.0)
    return empty, keys


def page_rows(pages, slots, payload):
    """Read payload and scale bytes of slots: uint8 [..., payload] and [..., rest]; payloads lead in a page."""
    size = pages.shape[1]
    content = pages.view(torch.uint8).flatten(1)
    parts = content[:, : size * payload], content[:, size * payload :]
    return [part.unflatten(1, (size, -1))[slots // size, slots % size] for part in parts]


def scaled(values, scales):
    """Multiply values [..., 512] by one scale per group of neighbours."""
    return (values.unflatten(-1, (scales.shape[-1], -1)) * scales.float()[..., None]).flatten(-2)


def fp8_rows(pages, slots):
    codes, powers = page_rows(pages, slots, D)
    return scaled(codes.view(torch.float8_e4m3fn).float(), powers.view(torch.float8_e8m0fnu))


def fp4_rows(pages, slots):
    pairs, scales = page_rows(pages, slots, D // 2)
    values = torch.stack((e2m1(pairs & 15), e2m1(pairs >> 4)), -1).flatten(-2)
    return scaled(values, scales.view(torch.float8_e4m3fn))


def e2m1(codes):
    """Decode E2M1 codes to float32: float16 with the same exponent and mantissa bits is smaller by 2**14."""
    bits = ((codes.int() & 7) << 9) | ((codes.int() & 8) << 12)
    return bits.to(torch.int16).view(torch.float16).float() * 2.0**14
