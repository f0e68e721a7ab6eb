"""Values that no earlier call had, for an operator whose work stays the same.

The key `fresh` of a task lists one rule for each input that changes before a timed call:

    tensor          the input; the captured values are always the origin, so draws do not add up
    how             mix       each unit along `axis` turns towards another one: x cos t + partner sin t, the partner
                              scaled to the norm of x; every element times a random factor of mean square 1; every
                              last-axis row scaled back to its captured norm, give or take 3 %
                    gate      mix, held inside the captured range
                    jitter    the random factor alone, held inside the captured range: constants whose places mean
                              something
                    fp8_rows, fp8_pages, fp4_pages   mix of decoded rows, encoded again (judge/fresh_formats.py)
    axis            the axis whose units are mixed (default 0); a single unit is mixed along another axis instead,
                    and a single row along its channels
    strength        standard deviation of the factors, and the size of sin t (0.7 to 1.5 times it); default 0.3
    scale, group    fp8_rows: the tensor of the scales, and the elements that share one maximum
    cut             a selection reads the tensor: rows whose choice rounding would decide are drawn again
    after_prepare   an activation: changes also under a prepared launch; other tensors are weights and constants
    reason          why the operator's work stays the same

The factors are independent for every element: no answer to earlier content, and no linear combination of such
answers, is an answer to this content. Rows of zeros (empty states, unused slots) and rows that hold garbage (not
finite, or squares beyond float32) stay as they are, and integers (ids, lengths, tables, positions) are never touched.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import SchemaError
from inference_kernels.core.types import FreshRuleDocument
from inference_kernels.judge.fresh_cuts import CUTS
from inference_kernels.judge.fresh_formats import FORMATS, PlainValues, RowSource

if TYPE_CHECKING:
    import torch

VALUES = ("mix", "gate", "jitter")
# Weights and constants larger than this stay as captured: expert banks. Activations of any size change.
WEIGHT_LIMIT = 2**29
# Bytes of the float32 values that are worked on at once; two more buffers of this size are in use.
CHUNK_BYTES = 2**28
NORM_RANGE = 0.03
SINES = (0.7, 1.5)
# How often rows that rounding would decide are drawn again. One draw in about a hundred rows has such a row, so
# this leaves none in practice; what remains after it is kept.
REDRAWS = 8


@dataclass(frozen=True)
class FreshRule:
    """One rule of `fresh`; the module's text explains the fields."""

    tensor: str
    how: str
    reason: str
    axis: int = 0
    strength: float = 0.3
    scale: str = ""
    group: int = 32
    cut: str = ""
    after_prepare: bool = False

    def __post_init__(self) -> None:
        if (
            self.how not in (*VALUES, *FORMATS)
            or self.cut not in ("", *CUTS)
            or (self.how == "fp8_rows") > bool(self.scale)
        ):
            raise SchemaError(
                expected=f"how of {[*VALUES, *FORMATS]}, cut of {[*CUTS]}, a scale for fp8_rows",
                found=f"{self.tensor}: {self.how} {self.cut} {self.scale}".rstrip(),
                where="fresh of a task",
                remedy="correct the rule",
            )

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.tensor, self.scale) if self.scale else (self.tensor,)


def rules_of(items: Iterable[FreshRuleDocument]) -> list[FreshRule]:
    """Parse the key `fresh` of a task; SchemaError for an unknown kind or cut."""
    return [FreshRule(**item) for item in items]


def freshen(
    inputs: Mapping[str, Any],
    rules: Iterable[FreshRule],
    axes: Mapping[str, int],
    generator: "torch.Generator",
    after_prepare: bool,
) -> dict[str, "torch.Tensor"]:
    """Return new tensors for the inputs that change: same shape, dtype and device, memory of their own.

    inputs: the captured values, which stay as they are. axes: sizes by name, for the cuts. after_prepare: activations
    only; otherwise also weights and constants up to WEIGHT_LIMIT. The same generator state gives the same values.
    """
    fresh: dict[str, torch.Tensor] = {}
    drawn = []
    for rule in rules:
        seed = draw_seed(generator)
        if applies(rule, inputs, after_prepare):
            fresh |= changed(rule, inputs, seed)
            drawn.append(rule)
    for rule in drawn:
        if rule.cut:
            fresh[rule.tensor] = without_near_ties(rule, inputs, fresh, axes, generator)
    return fresh


def applies(rule: FreshRule, inputs: Mapping[str, Any], after_prepare: bool) -> bool:
    """Tell whether the rule changes something in this call."""
    missing = [name for name in rule.tensors if name not in inputs]
    if missing:
        raise SchemaError(
            expected=f"an input of {sorted(inputs)}",
            found=missing[0],
            where="fresh of a task",
            remedy="correct the rule",
        )
    values = [inputs[name] for name in rule.tensors]
    if not all(hasattr(value, "shape") for value in values) or (after_prepare and not rule.after_prepare):
        return False  # an absent state is None
    return rule.after_prepare or all(value.numel() * value.element_size() <= WEIGHT_LIMIT for value in values)


def draw_seed(generator: "torch.Generator") -> int:
    import torch

    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def changed(rule: FreshRule, inputs: Mapping[str, Any], seed: int) -> dict[str, "torch.Tensor"]:
    """Apply one rule to the captured values; by name of the tensors that it changes."""
    import torch

    tensors = [inputs[name] for name in rule.tensors]
    if not tensors[0].numel():
        return {name: value.clone() for name, value in zip(rule.tensors, tensors)}
    source: RowSource = (
        FORMATS[rule.how](tensors, rule.group) if rule.how in FORMATS else PlainValues(tensors[0], rule.axis)
    )
    random = torch.Generator(tensors[0].device).manual_seed(seed)
    limits = finite_range(tensors[0]) if rule.how in ("gate", "jitter") else None
    partners, sines = cycle(source.units, random), uniform(source.units, *SINES, random) * rule.strength
    step = max(1, CHUNK_BYTES // source.unit_bytes)
    for first in range(0, source.units, step):
        index = torch.arange(first, min(first + step, source.units), device=sines.device)
        values = source.load(index)
        if rule.how == "jitter":
            usable = values.isfinite()
            values.mul_(normal(values, 1.0, rule.strength, random))
        else:
            other = source.load(partners[index]) if source.units > 1 else across_channels(values, random)
            turn(values, other, source.along(sines[index]), rule.strength, random)
            usable = norms(values).isfinite()
        source.store(first, values if limits is None else values.clamp_(*limits), usable)
    return dict(zip(rule.tensors, source.results()))


def finite_range(tensor: "torch.Tensor") -> tuple[float, float]:
    """Return the captured range, of what is finite."""
    import torch

    finite = tensor[tensor.isfinite()]
    low, high = torch.aminmax(finite) if finite.numel() else (finite.new_zeros(()),) * 2
    return float(low), float(high)


def turn(
    values: "torch.Tensor", other: "torch.Tensor", sine: "torch.Tensor", strength: float, random: "torch.Generator"
) -> None:
    """Turn rows towards others and scatter their elements, in place; norms come back within NORM_RANGE.

    Rows without a norm (zeros, what is not finite, squares beyond float32) end as NaN.
    """
    length = norms(values)
    towards = (length / norms(other)).nan_to_num_(0.0, 0.0, 0.0)  # nothing of a partner without a norm
    other.nan_to_num_(0.0, 0.0, 0.0).mul_(towards * sine)
    values.mul_((1 - sine.square()).sqrt()).add_(other)
    values.mul_(normal(other, (1 - strength**2) ** 0.5, strength, random))
    target = length * uniform(length.shape, 1 - NORM_RANGE, 1 + NORM_RANGE, random)
    values.mul_(target / norms(values))


def norms(values: "torch.Tensor") -> "torch.Tensor":
    """Return the norm of each last-axis row."""
    import torch

    return torch.linalg.vector_norm(values, dim=-1, keepdim=True)


def normal(like: "torch.Tensor", mean: float, deviation: float, random: "torch.Generator") -> "torch.Tensor":
    import torch

    return torch.empty_like(like).normal_(mean, deviation, generator=random)


def uniform(shape: Any, low: float, high: float, random: "torch.Generator") -> "torch.Tensor":
    import torch

    return torch.rand(shape, generator=random, device=random.device) * (high - low) + low


def cycle(count: int, random: "torch.Generator") -> "torch.Tensor":
    """Draw a partner for each of `count` units: one random cycle, so that none is its own unless it is alone."""
    import torch

    order = torch.randperm(count, generator=random, device=random.device)
    partners = torch.empty_like(order)
    partners[order] = order.roll(1)
    return partners


def across_channels(values: "torch.Tensor", random: "torch.Generator") -> "torch.Tensor":
    """Permute the last axis: the partner of a row that is alone."""
    return values.index_select(-1, cycle(values.shape[-1], random))


def without_near_ties(
    rule: FreshRule,
    inputs: Mapping[str, Any],
    fresh: Mapping[str, "torch.Tensor"],
    axes: Mapping[str, int],
    generator: "torch.Generator",
) -> "torch.Tensor":
    """Draw rows again until none of them has a near tie at the selection's cut, at most REDRAWS times."""
    import torch

    values = fresh[rule.tensor]
    for _ in range(REDRAWS):
        near = CUTS[rule.cut]({**inputs, **fresh, rule.tensor: values}, axes)
        if not bool(near.any()):
            break
        again = changed(rule, inputs, draw_seed(generator))[rule.tensor]
        values = torch.where(near.view(-1, *[1] * (values.dim() - 1)), again, values)
    return values
