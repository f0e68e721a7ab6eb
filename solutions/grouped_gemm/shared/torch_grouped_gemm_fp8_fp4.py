"""Grouped FP8 x FP4 GEMM on PyTorch alone: one linear layer per expert, for experts that own rows.

Boundary: the whole definition. Both operands are decoded to BF16 (exact) by table look-up and multiplied by
torch's linear, which sums in float32. The loop runs over the experts found in `expert_ids`: it reads them on
the host, so that the launch cannot be captured in a CUDA graph. Made for the CPU, where it was validated: the
judge refuses it on a GPU (not_capturable).
"""

import torch

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GROUP = 32  # elements of K that share one scale


def run(a, a_scale, b, b_scale, expert_ids):
    """Multiply each row by its expert's weights.

    a int8 [M, K], a_scale int8 [M, K / 32], b int8 [E, N, K / 2], b_scale int8 [E, N, K / 32],
    expert_ids int32 [M] -> d bfloat16 [M, N].
    """
    d = torch.empty(a.shape[0], b.shape[1], dtype=torch.bfloat16, device=a.device)
    x = scaled(a.view(torch.float8_e4m3fn).bfloat16(), a_scale)
    pairs = byte_pairs(a.device)
    experts, counts = torch.unique_consecutive(expert_ids, return_counts=True)
    for expert, rows in zip(experts.tolist(), torch.arange(len(x)).split(counts.tolist())):
        weight = pairs[b[expert].view(torch.uint8).int()].flatten(-2)
        d[rows[0] : rows[-1] + 1] = torch.nn.functional.linear(
            x[rows[0] : rows[-1] + 1], scaled(weight, b_scale[expert])
        )
    return d


def byte_pairs(device):
    """Tabulate the values of the low and of the high nibble of each byte: bfloat16 [256, 2]."""
    values = torch.tensor(LEVELS + tuple(-level for level in LEVELS), dtype=torch.bfloat16, device=device)
    byte = torch.arange(256, device=device)
    return torch.stack((values[byte & 15], values[byte >> 4]), dim=-1)


def scaled(values, scale):
    """Multiply values bfloat16 [R, K] by the power of two of each group's E8M0 byte, exactly."""
    powers = scale.view(torch.float8_e8m0fnu).bfloat16()
    return (values.unflatten(-1, (-1, GROUP)) * powers[..., None]).flatten(-2)
