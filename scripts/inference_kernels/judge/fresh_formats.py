"""Tensors as rows of float32 values that can be read, changed and written again in their own format.

A source has `units` that are mixed; `load` decodes some of them, `store` encodes consecutive ones into tensors of
its own, `results` returns these. What `usable` does not mark keeps its captured bytes: slots that no index names may
hold anything.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from inference_kernels.core.errors import SchemaError

if TYPE_CHECKING:
    import torch

E4M3_MAX, E2M1_MAX = 448.0, 6.0
SMALLEST_E4M3 = 2.0**-9
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the low three bits of a code; bit 3 is the sign
E2M1_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
FP8_GROUP, FP4_GROUP = 32, 16


class RowSource(Protocol):
    """What judge/fresh.py needs of a tensor in any format."""

    units: int
    unit_bytes: int

    def load(self, index: "torch.Tensor") -> "torch.Tensor": ...

    def store(self, first: int, values: "torch.Tensor", usable: "torch.Tensor") -> None: ...

    def along(self, factors: "torch.Tensor") -> "torch.Tensor": ...

    def results(self) -> Sequence["torch.Tensor"]: ...


class PlainValues:
    """A floating-point tensor; its units lie along `axis`, or along another one where that has a single unit."""

    def __init__(self, tensor: "torch.Tensor", axis: int):
        import torch

        self.tensor = tensor if tensor.dim() > 1 else tensor.reshape(1, -1)
        self.shape = tensor.shape
        candidates = [axis, *range(self.tensor.dim() - 1)]
        self.axis = next((place for place in candidates if self.tensor.shape[place] > 1), 0)
        self.units = self.tensor.shape[self.axis]
        self.unit_bytes = 4 * self.tensor.numel() // self.units
        self.out = torch.empty(self.tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def load(self, index: "torch.Tensor") -> "torch.Tensor":
        return self.tensor.index_select(self.axis, index).float()

    def store(self, first: int, values: "torch.Tensor", usable: "torch.Tensor") -> None:
        import torch

        place = (self.axis, first, values.shape[self.axis])
        limit = torch.finfo(self.out.dtype).max
        rounded = values.clamp_(-limit, limit).to(self.out.dtype)
        self.out.narrow(*place).copy_(torch.where(usable, rounded, self.tensor.narrow(*place)))

    def along(self, factors: "torch.Tensor") -> "torch.Tensor":
        """Shape one factor a unit so that it multiplies loaded values."""
        return factors.view([-1 if place == self.axis else 1 for place in range(self.tensor.dim())])

    def results(self) -> list["torch.Tensor"]:
        return [self.out.view(self.shape)]


class PackedRows:
    """Rows of payload bytes and of scale bytes, both addressed by (block, row) in `views` of whole tensors."""

    row_values: int

    def __init__(self, tensors: Sequence["torch.Tensor"]):
        self.captured = self.views([tensor.contiguous() for tensor in tensors])
        self.out = [tensor.clone(memory_format=_contiguous()) for tensor in tensors]
        self.targets = self.views(self.out)
        blocks, self.per_block = self.captured[0].shape[:2]
        self.units = blocks * self.per_block
        self.unit_bytes = 4 * self.row_values

    def views(self, tensors: Sequence["torch.Tensor"]) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Return payload [block, row, bytes] and scales [block, row, bytes] as views of `tensors`."""
        raise NotImplementedError

    def decode(self, payload: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
        raise NotImplementedError

    def encode(self, values: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        raise NotImplementedError

    def load(self, index: "torch.Tensor") -> "torch.Tensor":
        place = index // self.per_block, index % self.per_block
        payload, scales = self.captured
        return self.decode(payload[place], scales[place])

    def store(self, first: int, values: "torch.Tensor", usable: "torch.Tensor") -> None:
        import torch

        index = torch.arange(first, first + len(values), device=values.device)
        place = index // self.per_block, index % self.per_block
        for old, target, new in zip(self.captured, self.targets, self.encode(values.nan_to_num_(0.0, 0.0, 0.0))):
            target[place] = torch.where(usable, new, old[place])

    def along(self, factors: "torch.Tensor") -> "torch.Tensor":
        return factors[:, None]

    def results(self) -> list["torch.Tensor"]:
        return self.out


class Fp8Rows(PackedRows):
    """E4M3 bytes [rows, n] and E8M0 bytes [rows, n / 32]; `group` elements share one maximum, so equal scales."""

    def __init__(self, tensors: Sequence["torch.Tensor"], group: int):
        self.group, self.row_values = group, tensors[0].shape[1]
        if self.row_values % group or tensors[1].shape[1] * FP8_GROUP != self.row_values:
            raise SchemaError(
                expected=f"rows of a multiple of {group} values, a scale for each {FP8_GROUP}",
                found=f"shapes {[list(tensor.shape) for tensor in tensors]}",
                where="fresh of a task",
                remedy="correct the rule",
            )
        super().__init__(tensors)

    def views(self, tensors: Sequence["torch.Tensor"]) -> tuple["torch.Tensor", "torch.Tensor"]:
        return tensors[0][None], tensors[1][None]

    def decode(self, payload: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
        return fp8_values(payload, scales)

    def encode(self, values: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        return fp8_bytes(values, self.group)


class Fp8Pages(PackedRows):
    """Pages [N, P, n + n / 32]: P rows of n E4M3 bytes, then P rows of n / 32 E8M0 scales."""

    def __init__(self, tensors: Sequence["torch.Tensor"], group: int):
        self.row_values = tensors[0].shape[2] * FP8_GROUP // (FP8_GROUP + 1)
        super().__init__(tensors)

    def views(self, tensors: Sequence["torch.Tensor"]) -> tuple["torch.Tensor", "torch.Tensor"]:
        return page_parts(tensors[0], self.row_values)

    def decode(self, payload: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
        return fp8_values(payload, scales)

    def encode(self, values: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        return fp8_bytes(values, FP8_GROUP)


class Fp4Pages(PackedRows):
    """Pages [N, P, n / 2 + n / 16]: P rows of E2M1 pairs, low nibble first, then P rows of n / 16 E4M3 scales."""

    def __init__(self, tensors: Sequence["torch.Tensor"], group: int):
        self.row_values = tensors[0].shape[2] * FP4_GROUP // (FP4_GROUP // 2 + 1)
        super().__init__(tensors)

    def views(self, tensors: Sequence["torch.Tensor"]) -> tuple["torch.Tensor", "torch.Tensor"]:
        return page_parts(tensors[0], self.row_values // 2)

    def decode(self, payload: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
        return fp4_values(payload, scales)

    def encode(self, values: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        return fp4_bytes(values)


FORMATS = {"fp8_rows": Fp8Rows, "fp8_pages": Fp8Pages, "fp4_pages": Fp4Pages}


def _contiguous() -> "torch.memory_format":
    import torch

    return torch.contiguous_format


def page_parts(pages: "torch.Tensor", payload: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """View pages as payload rows and scale rows: a page stores all of the first before any of the second."""
    flat, rows = pages.flatten(1), pages.shape[1]
    split = rows * payload
    return flat[:, :split].unflatten(1, (rows, payload)), flat[:, split:].unflatten(1, (rows, -1))


def fp8_values(payload: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """Decode E4M3 bytes [rows, n] with one E8M0 byte for each 32 of them."""
    import torch

    powers = scales.contiguous().view(torch.float8_e8m0fnu).float()
    values = payload.contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (-1, FP8_GROUP))
    return values.mul_(powers[..., None]).flatten(-2)


def fp8_bytes(values: "torch.Tensor", group: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Encode rows as the engine does: the least power of two that brings a group's maximum to 448 or below."""
    import torch

    grouped = values.unflatten(-1, (-1, group))
    mantissa, exponent = torch.frexp(grouped.abs().amax(-1) / E4M3_MAX)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).masked_fill(mantissa == 0, -127)
    scales = (exponent.clamp(-127, 127) + 127).to(torch.uint8)
    powers = scales.view(torch.float8_e8m0fnu).float()
    codes = (grouped / powers[..., None]).clamp_(-E4M3_MAX, E4M3_MAX).flatten(-2).to(torch.float8_e4m3fn)
    return codes.view(torch.int8), scales.view(torch.int8).repeat_interleave(group // FP8_GROUP, dim=-1)


def fp4_values(payload: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """Decode pairs of E2M1 codes [rows, n / 2] with one E4M3 byte for each 16 values."""
    import torch

    codes = payload.contiguous().view(torch.uint8)
    levels = torch.tensor(E2M1 + tuple(-level for level in E2M1), device=payload.device)
    values = torch.stack((levels[(codes & 15).int()], levels[(codes >> 4).int()]), dim=-1).flatten(-2)
    factors = scales.contiguous().view(torch.float8_e4m3fn).float()
    return values.unflatten(-1, (-1, FP4_GROUP)).mul_(factors[..., None]).flatten(-2)


def fp4_bytes(values: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Encode rows as the engine does: a group's maximum becomes the code of 6, its scale rounded to E4M3."""
    import torch

    grouped = values.unflatten(-1, (-1, FP4_GROUP))
    scales = (grouped.abs().amax(-1) / E2M1_MAX).clamp_(SMALLEST_E4M3, E4M3_MAX).to(torch.float8_e4m3fn)
    middles = torch.tensor(E2M1_MIDDLES, device=values.device)
    sizes = torch.bucketize((grouped / scales.float()[..., None]).abs_(), middles, out_int32=True)
    codes = (sizes + 8 * grouped.signbit()).flatten(-2).to(torch.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).view(torch.int8), scales.view(torch.int8)
