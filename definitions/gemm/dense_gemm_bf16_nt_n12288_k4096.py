"""Dense matrix product of activations with a stored weight: C = A @ B.T.

B keeps the layout of a linear layer's weight, one row an output feature, so both operands are contiguous
along the reduced axis K ("NT"). There is no bias.

Rounding: BF16 operands are widened exactly, products are summed in float32, and each element of C is rounded
to BF16 once.
"""

import torch

N = 12288
K = 4096

# Rows of A a step. At the largest published call (N=12288, K=4096, M=24576) the widened B is 12288*4096*4 B =
# 192 MiB, and each step's product 1024*12288*4 B = 48 MiB; neither grows with M.
ROWS = 1024


def run(A, B):
    """Return C.

    A  bfloat16 [M, K]  activations, one row a token
    B  bfloat16 [N, K]  weight, one row an output feature
    C  bfloat16 [M, N]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _product(A, B)
    finally:
        torch.set_float32_matmul_precision(precision)


def _product(A, B):
    M = A.shape[0]
    assert A.shape == (M, K) and B.shape == (N, K)
    weight = B.float().T
    C = torch.empty(M, N, dtype=torch.bfloat16, device=A.device)
    for first in range(0, M, ROWS):
        C[first : first + ROWS] = A[first : first + ROWS].float() @ weight
    return C
