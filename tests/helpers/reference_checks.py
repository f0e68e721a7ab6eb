"""Checks that the image and video references share: exact rounding, memory, good manners, sibling sources."""

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference_kernels.core.definitions import compile_reference

GIB = 2**30


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """BF16 test values, the same on every call."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).bfloat16()


def assert_rounded_once(actual: torch.Tensor, exact: torch.Tensor, noise: float = 1e-6) -> None:
    """`actual` (BF16) is `exact` (float64) computed in float32 and rounded once.

    Float32 sums are off by about `noise` of the largest value, which now and then tips a rounding: nearly all
    elements must equal the rounded exact value, and the rest must be its neighbour. A second rounding on the
    way (BF16 probabilities, partial sums) tips far more of them.
    """
    assert actual.dtype == torch.bfloat16 and actual.shape == exact.shape
    error, largest = (actual.double() - exact).abs(), exact.abs().max()
    half_step = 2.0**-8 * exact.abs() + noise * largest
    assert (error <= half_step).all(), f"worst error {error.max()} at {largest=}"
    equal = (actual == exact.bfloat16()).double().mean()
    assert equal >= 0.995, f"only {equal:.2%} of the elements are the rounded exact value"


class _Allocations(TorchDispatchMode):
    """Records (shape, dtype, bytes) of every new storage that an operator returns."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        self.made += [
            (tuple(leaf.shape), leaf.dtype, leaf.untyped_storage().nbytes())
            for leaf in tree_leaves(result)
            if isinstance(leaf, torch.Tensor) and _storage(leaf) not in given
        ]
        return result


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def temporary_bytes(run, *inputs: torch.Tensor) -> list[int]:
    """Sizes of all tensors that `run` allocates besides its one output, largest first.

    With inputs on the meta device nothing is stored, so the largest published shapes can be measured.
    """
    with _Allocations() as allocations:
        output = run(*inputs)
    allocations.made.remove((tuple(output.shape), output.dtype, output.untyped_storage().nbytes()))
    return sorted((size for _, _, size in allocations.made), reverse=True)


def assert_leaves_caller_alone(run, *inputs: torch.Tensor) -> None:
    """Inputs and the caller's float32 precision survive; the precision has no influence on the result."""
    before, expected = [x.clone() for x in inputs], run(*inputs)
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(run(*inputs), expected)
        assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(AssertionError):
            run(*(x[..., :-1] for x in inputs))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert all(torch.equal(x, y) for x, y in zip(inputs, before))


def without_constants(source: str, names: str) -> str:
    """The source with the values of the constants `names` (a regular expression) blanked."""
    return re.sub(rf"(?m)^({names}) = .*$", r"\1 =", source)


def mutated_reference(definition: dict, old: str, new: str):
    """The reference with one deliberate error; `old` must occur exactly once."""
    source = definition["reference"]
    assert source.count(old) == 1, f"{definition['name']}: {old!r} occurs {source.count(old)} times"
    return compile_reference({**definition, "reference": source.replace(old, new)})
