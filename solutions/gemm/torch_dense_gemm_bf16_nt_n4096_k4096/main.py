"""C = A @ B.T through torch's linear layer: cuBLAS on a GPU, oneDNN on a CPU.

Boundary: the whole definition, one library call, no adaptation.
Run on CPU and on an H200 (torch 2.14.1): passes the 3 starter workloads of N = K = 4096; right with
seeded inputs of 16 to 6144 rows in all three shapes. The starter workloads of the other two were not judged.
"""

import torch


def run(A, B):
    """A bfloat16 [M, K], B bfloat16 [N, K] -> C bfloat16 [M, N]."""
    return prepare(A, B)()


def prepare(A, B):
    return lambda: torch.nn.functional.linear(A, B)
