"""C = A @ B.T as SGLang 0.5.23's image transformer computes it: `UnquantizedLinearMethod.apply`.

Boundary: the whole definition; the call that the linear layers' `forward` makes, which on CUDA is torch's
`linear`, that is cuBLAS. Adaptation: the weight hangs on a bare object instead of a layer. The engine lets
cuBLAS add partial sums in BF16, as torch does by default. sm_100 takes the same call, not run here.
Run on CPU and on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

from types import SimpleNamespace


def run(A, B):
    """Multiply A bfloat16 [M, K] by the transpose of B bfloat16 [N, K] -> C bfloat16 [M, N]."""
    return prepare(A, B)()


def prepare(A, B):
    from sglang.multimodal_gen.runtime.layers.linear import UnquantizedLinearMethod

    method, layer = UnquantizedLinearMethod(), SimpleNamespace(weight=B)
    return lambda: method.apply(layer, A)
