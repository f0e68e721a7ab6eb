"""Grouped FP8 x FP4 GEMM as SGLang 0.5.23 calls it:
`deep_gemm_wrapper.entrypoint.grouped_gemm_nt_f8f8bf16_contig`.

Boundary: the whole definition. In the engine this call stands between the scatter of the experts' rows and
the SwiGLU or the gather; here rows are padded to DeepGEMM's alignment before it and taken back after it, in
every call. Adaptations: scales are packed four per word and transposed to the library's layout, the weights'
in every call (the engine does it once, at loading); recipe_a is (1, 32), the data's, where the engine passes
(1, 128).
Not runnable on sm_90: DeepGEMM refuses FP8 x FP4 there. Run on an H200 (torch 2.14.1) it ended in
"Assertion error (.../layout.hpp:73): ab.scalar_type() == kPackedFP4 and (arch_major == 10 or arch_major ==
12)". sm_100: written by the engine's source, not run here. Validated on CPU with a stand-in for the engine's
function.
"""

import os

import torch

# The engine would otherwise compile DeepGEMM's kernels for all M at the first call, for ten minutes and more.
os.environ.setdefault("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "0")


def run(a, a_scale, b, b_scale, expert_ids):
    """Multiply each row by its expert's weights.

    a int8 [M, K], a_scale int8 [M, K / 32], b int8 [E, N, K / 2], b_scale int8 [E, N, K / 32],
    expert_ids int32 [M] -> d bfloat16 [M, N].
    """
    return prepare(a, a_scale, b, b_scale, expert_ids)()


def prepare(a, a_scale, b, b_scale, expert_ids):
    from sglang.srt.layers.deep_gemm_wrapper.entrypoint import (
        contiguous_layout_alignment_scope,
        get_contiguous_layout_alignment,
        grouped_gemm_nt_f8f8bf16_contig,
    )

    (M, K), (E, N) = a.shape, b.shape[:2]
    alignment = get_contiguous_layout_alignment(M, E)
    padded = (M + min(M, E) * (alignment - 1)) // alignment * alignment
    x = torch.zeros(padded, K, dtype=torch.int8, device=a.device)
    # Scales lie column-major, four bytes of a row per word; columns start at multiples of 16 bytes.
    x_scale = torch.zeros(K // 128, -(-padded // 4) * 4, dtype=torch.int32, device=a.device).t()[:padded]
    weight_scale = torch.empty(E, K // 128, N, dtype=torch.int32, device=a.device).transpose(1, 2)

    def launch():
        place = padded_places(expert_ids, E, alignment)
        x[place] = a
        x_scale[place] = a_scale.view(torch.int32)
        weight_scale.copy_(b_scale.view(torch.int32))
        m_indices = torch.full((padded,), -1, dtype=torch.int32, device=a.device)
        m_indices[place] = expert_ids
        out = torch.empty(padded, N, dtype=torch.bfloat16, device=a.device)
        with contiguous_layout_alignment_scope(alignment):
            grouped_gemm_nt_f8f8bf16_contig(
                (x.view(torch.float8_e4m3fn), x_scale),
                (b, weight_scale),
                out,
                m_indices,
                recipe_a=(1, 32),
                recipe_b=(1, 32),
            )
        return out[place]

    return launch


def padded_places(expert_ids, experts, alignment):
    """Place each row, every expert starting at a multiple of `alignment`: int64 [M]."""
    keys = torch.arange(experts + 1, dtype=torch.int32, device=expert_ids.device)
    edges = torch.searchsorted(expert_ids, keys)
    lengths = (edges.diff() + alignment - 1) // alignment * alignment
    shift = lengths.cumsum(0) - lengths - edges[:-1]
    return shift[expert_ids] + torch.arange(len(expert_ids), device=expert_ids.device)
