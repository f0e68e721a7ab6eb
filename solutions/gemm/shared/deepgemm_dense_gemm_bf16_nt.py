"""C = A @ B.T through DeepGEMM (sgl-deep-gemm 0.2.3.post2) or torch's linear, whichever was faster.

Boundary: the whole definition, one library call, no adaptation. `FASTER` says by M which library is called.
sm_90: `FASTER` is from a sweep on an H200. sm_100: DeepGEMM has kernels for the same call, not run here.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import sys

import torch

from .constants import LARGEST_M

# (largest M, library): the first row that fits decides.
FASTER = ((LARGEST_M, "deep_gemm"), (sys.maxsize, "torch"))


def run(A, B):
    """Multiply A bfloat16 [M, K] by the transpose of B bfloat16 [N, K] -> C bfloat16 [M, N]."""
    return prepare(A, B)()


def prepare(A, B):
    library = next(name for rows, name in FASTER if len(A) <= rows)
    if library == "torch":
        return lambda: torch.nn.functional.linear(A, B)
    from deep_gemm import bf16_gemm_nt

    def launch():
        C = torch.empty(len(A), len(B), dtype=torch.bfloat16, device=A.device)
        bf16_gemm_nt(A, B, C)
        return C

    return launch
