"""Grouped FP8 x FP4 GEMM through DeepGEMM (sgl-deep-gemm 0.2.3.post2), contiguous layout.

Boundary: the whole definition. Rows are padded so that each expert starts at a multiple of DeepGEMM's
alignment; padding, scatter and the way back belong to every call, and all sizes are bounds known without
reading a value.
sm_90: DeepGEMM has no FP8 x FP4 product there, it asserts `ab.scalar_type() == kPackedFP4 and (arch_major ==
10 or arch_major == 12)` (layout.hpp). Both operands are decoded to BF16 instead (exact), the weights of
experts that own rows by a Triton kernel, and multiplied by `m_grouped_bf16_gemm_nt_contiguous`. Workspace:
min(M, E) BF16 weights, up to 18.1 GB.
sm_100: `m_grouped_fp8_fp4_gemm_nt_contiguous`, recipes (1, 32), scales packed four per word and transposed
to the library's layout in every call. Written by the library's interface, not run here.
Validated on CPU with a stand-in for the library. Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its
starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl

GROUP = tl.constexpr(32)  # elements of K that share one scale
ROWS, BYTES = 16, 128  # per step of the weight decoder


def run(a, a_scale, b, b_scale, expert_ids):
    """Multiply each row by its expert's weights.

    a int8 [M, K], a_scale int8 [M, K / 32], b int8 [E, N, K / 2], b_scale int8 [E, N, K / 32],
    expert_ids int32 [M] -> d bfloat16 [M, N].
    """
    return prepare(a, a_scale, b, b_scale, expert_ids)()


def prepare(a, a_scale, b, b_scale, expert_ids):
    arguments = a, a_scale, b, b_scale, expert_ids
    return prepare_fp8_fp4(*arguments) if has_fp4_product(a.device) else prepare_bf16(*arguments)


def has_fp4_product(device):
    return torch.cuda.get_device_capability(device)[0] >= 10


def prepare_bf16(a, a_scale, b, b_scale, expert_ids):
    from deep_gemm import get_mk_alignment_for_contiguous_layout, m_grouped_bf16_gemm_nt_contiguous

    (M, K), (E, N) = a.shape, b.shape[:2]
    alignment, slots = get_mk_alignment_for_contiguous_layout(), min(M, E)
    padded = (M + slots * (alignment - 1)) // alignment * alignment
    x = torch.zeros(padded, K, dtype=torch.bfloat16, device=a.device)
    weights = torch.zeros(slots, N, K, dtype=torch.bfloat16, device=a.device)

    def launch():
        place, counts = padded_places(expert_ids, E, alignment)
        slot = (counts > 0).cumsum(0) - 1
        chosen = torch.full((slots + 1,), -1, dtype=torch.int32, device=a.device)
        experts = torch.arange(E, dtype=torch.int32, device=a.device)
        # Experts without rows share the last, unused place.
        chosen.scatter_(0, torch.where(counts > 0, slot, slots), experts)
        _decode_weights[(slots, N // ROWS)](b, b_scale, chosen, weights, N, K, ROWS, BYTES)
        x[place] = scaled_activations(a, a_scale)
        layout = torch.full((padded,), -1, dtype=torch.int32, device=a.device)
        layout[place] = slot[expert_ids].int()
        d = torch.empty(padded, N, dtype=torch.bfloat16, device=a.device)
        m_grouped_bf16_gemm_nt_contiguous(x, weights, d, layout)
        return d[place]

    return launch


def prepare_fp8_fp4(a, a_scale, b, b_scale, expert_ids):
    from deep_gemm import get_mk_alignment_for_contiguous_layout, m_grouped_fp8_fp4_gemm_nt_contiguous

    (M, K), (E, N) = a.shape, b.shape[:2]
    alignment = get_mk_alignment_for_contiguous_layout()
    padded = (M + min(M, E) * (alignment - 1)) // alignment * alignment
    x = torch.zeros(padded, K, dtype=torch.int8, device=a.device)
    # Scales lie column-major, four bytes of a row per word; columns start at multiples of 16 bytes.
    x_scale = torch.zeros(K // 128, -(-padded // 4) * 4, dtype=torch.int32, device=a.device).t()[:padded]
    weight_scale = torch.empty(E, K // 128, N, dtype=torch.int32, device=a.device).transpose(1, 2)

    def launch():
        place, _ = padded_places(expert_ids, E, alignment)
        x[place] = a
        x_scale[place] = a_scale.view(torch.int32)
        weight_scale.copy_(b_scale.view(torch.int32))
        layout = torch.full((padded,), -1, dtype=torch.int32, device=a.device)
        layout[place] = expert_ids
        d = torch.empty(padded, N, dtype=torch.bfloat16, device=a.device)
        m_grouped_fp8_fp4_gemm_nt_contiguous(
            (x.view(torch.float8_e4m3fn), x_scale), (b, weight_scale), d, layout, recipe_a=(1, 32), recipe_b=(1, 32)
        )
        return d[place]

    return launch


def padded_places(expert_ids, experts, alignment):
    """Place the rows, experts starting at multiples of `alignment`: int64 [M]; count them: int64 [E]."""
    keys = torch.arange(experts + 1, dtype=torch.int32, device=expert_ids.device)
    edges = torch.searchsorted(expert_ids, keys)
    counts = edges.diff()
    lengths = (counts + alignment - 1) // alignment * alignment
    shift = lengths.cumsum(0) - lengths - edges[:-1]
    return shift[expert_ids] + torch.arange(len(expert_ids), device=expert_ids.device), counts


def scaled_activations(a, a_scale):
    """Decode the activations to bfloat16 [M, K], exactly."""
    groups = a.view(torch.float8_e4m3fn).bfloat16().unflatten(-1, (-1, GROUP.value))
    return (groups * a_scale.view(torch.float8_e8m0fnu).bfloat16()[..., None]).flatten(-2)


@triton.jit
def _decode_weights(
    b, b_scale, chosen, weights, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BYTES: tl.constexpr
):
    """Write BF16 rows of the expert chosen for a slot; an empty slot is left alone."""
    slot = tl.program_id(0)
    expert = tl.load(chosen + slot)
    if expert < 0:
        return
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source = expert.to(tl.int64) * N + rows[:, None]
    target = weights + (slot.to(tl.int64) * N + rows[:, None]) * K + tl.arange(0, 2 * BYTES)[None]
    byte = tl.arange(0, BYTES)[None]
    for first in range(0, K // 2, BYTES):
        codes = tl.load(b + source * (K // 2) + first + byte).to(tl.int32)
        scales = tl.load(b_scale + source * (K // GROUP) + (first + byte) // (GROUP // 2)).to(tl.int32) & 0xFF
        bits = tl.where(scales == 0, 1 << 22, tl.where(scales == 255, 0x7FC00000, scales << 23))
        powers = bits.to(tl.float32, bitcast=True)
        values = tl.interleave(_fp4(codes) * powers, _fp4(codes >> 4) * powers)
        tl.store(target + 2 * first, values.to(tl.bfloat16))


@triton.jit
def _fp4(code):
    """Decode the low four bits to float32: shifted into place they are the value times 2**-126, exactly."""
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
