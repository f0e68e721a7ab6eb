"""Exact rearrangements of captured values whose reference result is the same rearrangement.

The key `rearrangements` of a task lists the moves that its definition allows:

    name            what is permuted, in words
    axes            places permuted together: `A.0` dimension 0 of A; `q.1*12` blocks of 12; `q.1%12` inside each
                    block of 12; `kv8_pages@fp8_pages` a named view of packed bytes (VIEWS)
    relabel         tensors whose values >= 0 are positions on the permuted axis; `ids/P` = position * P + offset
    within          only rows with equal values of these expressions change places
    when            rule (constraint language) under which the move is legal
    after_prepare   touches activations only: a launch prepared earlier must follow it
    recompute       the reference result is not the same rearrangement: the reference is run again

A memoised, stale or precomputed result is a wrong result after such a move.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference_kernels.core.constraints import evaluate, value_of
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.types import Rearrangement

if TYPE_CHECKING:
    import torch

WHERE = "rearrangements of a task"
PLACE = re.compile(r"(\w+)(?:\.(\d+)(?:([*%])(\d+))?|@(\w+))")


@dataclass(frozen=True)
class MovedAxis:
    """A dimension of a tensor, split in blocks of `unit`; inner: elements inside each block change places."""

    tensor: str
    dim: int = 0
    unit: int = 1
    inner: bool = False
    view: str = ""

    @classmethod
    def parse(cls, text: str) -> "MovedAxis":
        match = PLACE.fullmatch(text)
        if not match:
            raise SchemaError(
                expected="tensor.dim, tensor.dim*unit, tensor.dim%unit or tensor@view",
                found=text,
                where=WHERE,
                remedy="correct the move",
            )
        tensor, dim, kind, unit, view = match.groups()
        return cls(tensor, int(dim or 0), int(unit or 1), kind == "%", view or "")


@dataclass(frozen=True)
class Move:
    name: str
    places: tuple[MovedAxis, ...]
    relabel: tuple[tuple[str, str], ...] = ()
    within: tuple[str, ...] = ()
    when: str = ""
    after_prepare: bool = False
    recompute: bool = False

    @classmethod
    def parse(cls, item: Rearrangement) -> "Move":
        relabel = (text.partition("/") for text in item.get("relabel", "").split())
        return cls(
            item["name"],
            tuple(map(MovedAxis.parse, item["axes"].split())),
            tuple((name, unit or "1") for name, _, unit in relabel),
            tuple(item.get("within", ())),
            item.get("when", ""),
            item.get("after_prepare", False),
            item.get("recompute", False),
        )


def moves_of(items: Iterable[Rearrangement]) -> list[Move]:
    """Parse the rearrangements of a task; SchemaError for a misspelt place."""
    return [Move.parse(item) for item in items]


@dataclass(frozen=True)
class DrawnMove:
    """A move with its permutation: `permuted[i] = old[order[i]]` along every place."""

    move: Move
    order: "torch.Tensor"
    units: dict[str, int]

    def apply(self, tensors: Mapping[str, Any]) -> None:
        """Rearrange in place those of `tensors` that the move touches."""
        for place in self.move.places:
            if place.tensor in tensors:
                permute_(tensors[place.tensor], place, self.order)
        for name, unit in self.units.items():
            if name in tensors:
                relabel_(tensors[name], unit, self.order)

    @property
    def trivial(self) -> bool:
        import torch

        return bool(torch.equal(self.order, torch.arange(len(self.order), device=self.order.device)))


def draw_move(
    move: Move, inputs: Mapping[str, Any], axes: dict[str, int], generator: "torch.Generator"
) -> DrawnMove | None:
    """Draw a permutation for the move from `generator`; None where it is not legal or changes nothing."""
    import torch

    names = {**axes, **inputs}
    if move.when and not evaluate(move.when, names, WHERE):
        return None
    first = next(place for place in move.places if place.tensor in inputs)
    count = extent(inputs[first.tensor], first)
    order = torch.randperm(count, generator=generator)
    if move.within:
        order = _inside_groups([value_of(text, names, WHERE).cpu() for text in move.within], order)
    units = {name: int(value_of(unit, names, WHERE)) for name, unit in move.relabel}
    drawn = DrawnMove(move, order, units)
    return None if drawn.trivial else drawn


def _inside_groups(keys: list["torch.Tensor"], shuffled: "torch.Tensor") -> "torch.Tensor":
    """Make a permutation that follows `shuffled` but keeps every row inside its group of equal keys."""
    import torch

    order = torch.empty_like(shuffled)
    order[_sorted_by(keys, torch.arange(len(shuffled)))] = _sorted_by(keys, shuffled)
    return order


def _sorted_by(keys: list["torch.Tensor"], rows: "torch.Tensor") -> "torch.Tensor":
    """Sort `rows` by their keys, the first key before the others; rows of equal keys keep their order."""
    for key in reversed(keys):
        rows = rows[key[rows].argsort(stable=True)]
    return rows


def _bytes_view(tensor: "torch.Tensor") -> "torch.Tensor":
    """View one-byte types as int8: index operations do not support every narrow float."""
    import torch

    return tensor.view(torch.int8) if tensor.element_size() == 1 and tensor.dtype != torch.bool else tensor


def _pieces(tensor: "torch.Tensor", place: MovedAxis) -> Iterable[tuple["torch.Tensor", int, int]]:
    if place.view:
        return VIEWS[place.view](tensor)
    return [(tensor, place.dim, place.unit)]


def fp8_pages(pages: "torch.Tensor") -> list[tuple["torch.Tensor", int, int]]:
    """Split pages [N, P, 528]: P payload rows of 512 E4M3 bytes, then P rows of 16 scales, one per 32 values."""
    flat, rows = pages.flatten(1), pages.shape[1]
    return [
        (flat[:, : 512 * rows].unflatten(1, (rows, 512)), 2, 32),
        (flat[:, 512 * rows :].unflatten(1, (rows, 16)), 2, 1),
    ]


def fp4_pages(pages: "torch.Tensor") -> list[tuple["torch.Tensor", int, int]]:
    """Split pages [N, P, 288]: P payload rows of 256 bytes (two codes each), then P rows of 32 scales of 16 values."""
    flat, rows = pages.flatten(1), pages.shape[1]
    return [
        (flat[:, : 256 * rows].unflatten(1, (rows, 256)), 2, 16),
        (flat[:, 256 * rows :].unflatten(1, (rows, 32)), 2, 2),
    ]


VIEWS = {"fp8_pages": fp8_pages, "fp4_pages": fp4_pages}


def extent(tensor: "torch.Tensor", place: MovedAxis) -> int:
    """Count the elements or blocks that change places."""
    view, dim, unit = next(iter(_pieces(tensor, place)))
    return unit if place.inner else view.shape[dim] // unit


def permute_(tensor: "torch.Tensor", place: MovedAxis, order: "torch.Tensor") -> None:
    order = order.to(tensor.device)
    for view, dim, unit in _pieces(_bytes_view(tensor), place):
        split = view.unflatten(dim, (-1, unit))
        split.copy_(split.index_select(dim + place.inner, order))


def relabel_(tensor: "torch.Tensor", unit: int, order: "torch.Tensor") -> None:
    """Renumber positions so that they follow what they point at; negative values stay."""
    import torch

    inverse = torch.argsort(order).to(tensor.device)
    place = tensor.long().clamp(min=0)
    moved = inverse[place // unit] * unit + place % unit
    tensor.copy_(torch.where(tensor >= 0, moved.to(tensor.dtype), tensor))


def move_message(drawn: DrawnMove) -> dict[str, Any]:
    """Say what a worker needs to apply the move, beside its order."""
    places = [[p.tensor, p.dim, p.unit, p.inner, p.view] for p in drawn.move.places]
    return {"places": places, "units": drawn.units, "count": len(drawn.order)}


def move_from_message(message: dict[str, Any], order: "torch.Tensor") -> DrawnMove:
    places = tuple(MovedAxis(*fields) for fields in message["places"])
    return DrawnMove(Move("", places), order, dict(message["units"]))
