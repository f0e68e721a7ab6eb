"""The criterion of recurrent states that an engine computes in chunks: three relative errors together.

A chunked gated-delta prefill keeps its state in float32 but rounds the operands of its matrix products to
BF16, so no element-by-element rule fits. The retired prefill definition is judged by this one, no task is.

    relative RMS         ||actual - expected|| / ||expected||           <= 1 %
    largest error        max |actual - expected| / max |expected|      <= 1.5 %
    per-head relative RMS, for the worst head of the worst sequence    <= 2 %
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StateLimits:
    relative_rms: float = 0.01
    max_error: float = 0.015
    head_relative_rms: float = 0.02


@dataclass
class StateComparison:
    """The plain record of one comparison; every figure is kept, also of a pass.

    status: pass | mismatch | non_finite | empty | shape | dtype
    max_error: largest absolute error over the largest absolute expected value.
    head_relative_rms: worst head of one sequence; this figure is judged (it is never below the pooled one).
    pooled_head_relative_rms: worst head, its sequences taken together.
    worst: index of the worst sequence and head: the axes up to and including the head axis.
    zero_heads: heads whose expected state is all zero while the actual one is not; they fail.
    """

    status: str
    elements: int = 0
    non_finite: int = 0
    relative_rms: float | None = None
    max_error: float | None = None
    head_relative_rms: float | None = None
    pooled_head_relative_rms: float | None = None
    worst: list[int] | None = None
    zero_heads: int = 0
    found: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_states(
    actual: "torch.Tensor", expected: "torch.Tensor", head_axis: int, limits: StateLimits = StateLimits()
) -> StateComparison:
    """Compare two floating tensors on one device; axes before `head_axis` count sequences.

    Scratch: about four float64 copies of one sequence's state.
    """
    if actual.shape != expected.shape:
        return StateComparison("shape", found=f"{tuple(actual.shape)} instead of {tuple(expected.shape)}")
    if actual.dtype != expected.dtype or not expected.dtype.is_floating_point:
        return StateComparison("dtype", found=f"{actual.dtype} against {expected.dtype}")
    if expected.numel() == 0:
        return StateComparison("empty")
    result = StateComparison("pass", elements=expected.numel())
    shape = tuple(expected.shape[: head_axis + 1])
    form = math.prod(shape[:-1]), shape[-1], -1
    _measure(result, actual.reshape(form), expected.reshape(form), shape)
    _judge(result, limits)
    return result


def _measure(result: StateComparison, actual: "torch.Tensor", expected: "torch.Tensor", shape: tuple[int, ...]) -> None:
    """Fill in the figures of [sequence, head, rest] tensors, one sequence at a time."""
    import torch

    errors, squares, largest, highest = [], [], 0.0, 0.0
    for row in range(expected.shape[0]):
        want = expected[row].double()
        error = actual[row].double() - want
        result.non_finite += error.numel() - int(error.isfinite().sum())
        errors.append(error.square().sum(-1))
        squares.append(want.square().sum(-1))
        largest, highest = max(largest, error.abs().max().item()), max(highest, want.abs().max().item())
    if result.non_finite:
        return
    error, square = torch.stack(errors).cpu(), torch.stack(squares).cpu()
    result.zero_heads = int(((square == 0) & (error > 0)).sum())
    if not highest:
        return
    result.max_error = largest / highest
    result.relative_rms = _ratio(error.sum(), square.sum()).item()
    result.pooled_head_relative_rms = _ratio(error.sum(0), square.sum(0)).max().item()
    each = _ratio(error, square).view(-1)
    result.head_relative_rms = each.max().item()
    result.worst = [int(index) for index in torch.unravel_index(each.argmax(), shape)]


def _ratio(error: "torch.Tensor", square: "torch.Tensor") -> "torch.Tensor":
    """Square root of the quotient; 0 where the expected state is zero: `zero_heads` covers that."""
    return (error / square.where(square > 0, 1.0)).where(square > 0, 0.0).sqrt()


def _judge(result: StateComparison, limits: StateLimits) -> None:
    """Non-finite elements come first, whatever the figures say."""
    if result.non_finite:
        result.status = "non_finite"
        return
    figures = [
        (result.relative_rms, limits.relative_rms),
        (result.max_error, limits.max_error),
        (result.head_relative_rms, limits.head_relative_rms),
    ]
    if result.zero_heads or any(figure is not None and figure > limit for figure, limit in figures):
        result.status = "mismatch"
