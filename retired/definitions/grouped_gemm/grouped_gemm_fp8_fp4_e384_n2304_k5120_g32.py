"""Grouped expert GEMM: FP8 activations times the FP4 weight of each row's expert, scaled in groups of 32.

    d[i, n]    = sum_k x[i, k] * w[expert_ids[i], n, k]
    x[i, k]    = e4m3(a[i, k]) * 2**(a_scale[i, k // 32] - 127)
    w[e, n, k] = e2m1(code k of b[e, n]) * 2**(b_scale[e, n, k // 32] - 127)

Bytes travel as int8 with their bit patterns unchanged. b holds two E2M1 codes a byte: element 2j in the low
nibble, 2j + 1 in the high nibble. A scale byte 255 is NaN, 0 is 2**-127. No bias, activation, router weight
or clamp: those are outside.

Rounding: both dequantised operands are exact in float32 (at most 4 significant bits times a power of two),
products are summed in float32, and each element of d is rounded to BF16 once.
"""

import torch

E = 384
N = 2304  # gate (w1) alone
K = 5120

GROUP = 32  # elements of K that share one scale
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the low three bits of a code; bit 3 is the sign

# One expert's weight is dequantised at a time, and only for experts that own rows; at the largest N * K =
# 4608 * 5120 it is 90 MiB in float32, and as much for the bytes as int64 indices or for the scaled copy.
# An expert's rows go in steps: 4096 * 5120 * 4 B = 80 MiB of x, twice while it is scaled, and 72 MiB of
# products. Together below 350 MiB, however many of the M = 24576 rows one expert owns.
ROWS = 4096


def run(a, a_scale, b, b_scale, expert_ids):
    """Return d.

    a           int8  [M, K]           E4M3FN bytes; rows sorted by expert, no padding rows
    a_scale     int8  [M, K / 32]      E8M0 bytes
    b           int8  [E, N, K / 2]    E2M1 codes, even element in the low nibble
    b_scale     int8  [E, N, K / 32]   E8M0 bytes
    expert_ids  int32 [M]              expert of each row, never decreasing, 0 <= id < E
    d           bfloat16 [M, N]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _grouped_product(a, a_scale, b, b_scale, expert_ids)
    finally:
        torch.set_float32_matmul_precision(precision)


def _grouped_product(a, a_scale, b, b_scale, expert_ids):
    M = a.shape[0]
    assert a.shape == (M, K) and a_scale.shape == (M, K // GROUP) and expert_ids.shape == (M,)
    assert b.shape == (E, N, K // 2) and b_scale.shape == (E, N, K // GROUP)
    d = torch.empty(M, N, dtype=torch.bfloat16, device=a.device)
    experts, counts = torch.unique_consecutive(expert_ids, return_counts=True)
    end = 0
    for expert, count in zip(experts.tolist(), counts.tolist()):
        weight = _scaled(_e2m1(b[expert]), b_scale[expert]).T
        start, end = end, end + count
        for first in range(start, end, ROWS):
            rows = slice(first, min(first + ROWS, end))
            d[rows] = _scaled(a[rows].view(torch.float8_e4m3fn).float(), a_scale[rows]) @ weight
    return d


def _e2m1(packed):
    """Values of FP4 codes: int8 [R, K / 2] -> float32 [R, K]."""
    signed = E2M1 + tuple(-level for level in E2M1)
    levels = torch.tensor(signed, dtype=torch.float32, device=packed.device)
    byte = torch.arange(256, device=packed.device)
    pairs = torch.stack((levels[byte & 15], levels[byte >> 4]), dim=-1)  # elements 2j and 2j + 1 of each byte
    return pairs[packed.view(torch.uint8).long()].flatten(-2)


def _scaled(values, scale):
    """values float32 [R, K] times the power of two that the E8M0 byte of each group of 32 means."""
    powers = scale.view(torch.float8_e8m0fnu).float()
    return (values.unflatten(-1, (-1, GROUP)) * powers[..., None]).flatten(-2)
