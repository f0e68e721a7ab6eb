"""References on a GPU: the CPU tests' oracles, and no influence of the float32 precision that a caller set."""

import importlib

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]

FAMILIES = [
    "gemm",
    "block_causal_attention",
    "dense_attention",
    "neighborhood_attention",
    "grouped_gemm",
    "mixed_mla",
    "sparse_mla",
    "expert_router",
    "sparse_index",
    "sparse_gqa",
    "gdn",
]
CASES = [
    (family, name)
    for family in FAMILIES
    for name in sorted({row[0] for row in importlib.import_module(f"helpers.mutations.{family}").MUTATIONS})
]


class OnCuda:
    """A reference that computes on the GPU for a caller that holds CPU tensors; its globals stay reachable."""

    def __init__(self, run):
        self.run = run

    @property
    def __globals__(self) -> dict:
        return self.run.__globals__

    def __call__(self, *inputs):
        result = self.run(*(value.cuda() if isinstance(value, torch.Tensor) else value for value in inputs))
        return tuple(item.cpu() for item in result) if isinstance(result, tuple) else result.cpu()


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("family, name", CASES)
def test_reference_on_cuda(family, name, precision, reference):
    """With "medium" the caller allows TF32 and BF16 inside float32 products; the reference must not use them."""
    torch.set_float32_matmul_precision(precision)
    try:
        importlib.import_module(f"references.test_{family}").check_oracle(name, OnCuda(reference(name)))
    finally:
        torch.set_float32_matmul_precision("highest")
