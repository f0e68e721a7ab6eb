"""The kinds of tensors in a seeded checkpoint. Standard library and numpy only.

All have name, shape, dtype_name, nbytes, entry(seed, prefix) for the recipe file and chunks(seed, prefix) for the
bytes. The stream of a tensor is keyed by prefix + name: how tensors are spread over files changes nothing.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inference_kernels.seeded.recipes import ByteRecipe, Recipe, byte_chunks, recipe_chunks, recipe_for_std

DTYPE_NAMES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
FORMAT_NAMES = {"e2m1x2": "I8", "e4m3": "F8_E4M3", "e8m0": "F8_E8M0"}


def bfloat16_bytes(value: float) -> bytes:
    """Return the two bytes of a value that bfloat16 holds exactly; ValueError for any other."""
    low, high = struct.unpack("<HH", struct.pack("<f", value))
    if low or struct.unpack("<f", struct.pack("<HH", 0, high))[0] != value:
        raise ValueError(f"{value} is not a bfloat16 number")
    return struct.pack("<H", high)


@dataclass(frozen=True)
class Dense:
    """A tensor of bfloat16 or float32 numbers."""

    name: str
    shape: tuple[int, ...]

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_NAMES[self.dtype][1]


@dataclass(frozen=True)
class Drawn(Dense):
    """Values of mean 0 and standard deviation `std` (see `recipe_for_std`)."""

    std: float
    dtype: str = "bfloat16"

    def recipe(self, seed: int, prefix: str = "") -> Recipe:
        return recipe_for_std(self.std, seed, prefix + self.name, self.shape, self.dtype)

    def entry(self, seed: int, prefix: str) -> dict[str, Any]:
        return self.recipe(seed, prefix).to_json()

    def chunks(self, seed: int, prefix: str) -> Iterator[bytes]:
        return recipe_chunks(self.recipe(seed, prefix))


@dataclass(frozen=True)
class Listed(Dense):
    """Given values, repeated to fill the shape: one number, or a short list. Recipe files keep the form given."""

    values: float | tuple[float, ...]
    dtype: str = "bfloat16"

    def entry(self, seed: int, prefix: str) -> dict[str, Any]:
        constant = list(self.values) if isinstance(self.values, tuple) else self.values
        return {"tensor": prefix + self.name, "shape": list(self.shape), "dtype": self.dtype, "constant": constant}

    def chunks(self, seed: int, prefix: str) -> Iterator[bytes]:
        values = self.values if isinstance(self.values, tuple) else (self.values,)
        if self.dtype == "bfloat16":
            once = b"".join(map(bfloat16_bytes, values))
        else:
            once = struct.pack(f"<{len(values)}f", *values)
        yield once * (self.nbytes // len(once))


@dataclass(frozen=True)
class Rows:
    """Parts of one tensor, stacked along its first axis, each with a rule of its own."""

    name: str
    parts: tuple[Drawn, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:]

    @property
    def dtype_name(self) -> str:
        return self.parts[0].dtype_name

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def entry(self, seed: int, prefix: str) -> dict[str, Any]:
        return {"tensor": prefix + self.name, "rows": [part.entry(seed, prefix) for part in self.parts]}

    def chunks(self, seed: int, prefix: str) -> Iterator[bytes]:
        for part in self.parts:
            yield from part.chunks(seed, prefix)


@dataclass(frozen=True)
class Coded:
    """Bytes of a number format: a stream of its own, or a part of the stream of a `bank` of many tensors.

    bank, bank_shape, start: the logical tensor that an engine joins such tensors to, and the first byte in it.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    low: int = 0
    levels: int = 0
    bank: str | None = None
    bank_shape: tuple[int, ...] = ()
    start: int = 0

    @property
    def dtype_name(self) -> str:
        return FORMAT_NAMES[self.format]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    def recipe(self, seed: int, prefix: str = "") -> ByteRecipe:
        """Return the recipe of the whole stream: the bank's, if the tensor is part of one."""
        shape = self.bank_shape or self.shape
        return ByteRecipe(seed, prefix + (self.bank or self.name), shape, self.format, self.low, self.levels)

    def entry(self, seed: int, prefix: str) -> dict[str, Any]:
        recipe = self.recipe(seed, prefix).to_json()
        if self.bank is None:
            return recipe
        return {
            "tensor": prefix + self.name,
            "shape": list(self.shape),
            "part_of": prefix + self.bank,
            "start": self.start,
            "bank_recipe": {key: recipe[key] for key in ("generator", "seed", "format", "low", "levels")},
        }

    def chunks(self, seed: int, prefix: str) -> Iterator[bytes]:
        return byte_chunks(self.recipe(seed, prefix), self.start, self.nbytes)


Weight = Drawn | Listed | Rows | Coded


def linear(name: str, shape: tuple[int, ...], gain: float = 1.0) -> Drawn:
    """Draw a weight with a standard deviation of gain / sqrt(fan_in), fan_in the product of all sizes but the first."""
    return Drawn(name, shape, gain / math.sqrt(math.prod(shape[1:])))


def affine(prefix: str, shape: tuple[int, ...], gain: float = 1.0) -> Iterator[Weight]:
    """Yield weight and zero bias of a layer; shape: outputs first."""
    yield linear(f"{prefix}.weight", shape, gain)
    yield Listed(f"{prefix}.bias", (shape[0],), 0.0)


def norm(prefix: str, width: int) -> Listed:
    return Listed(f"{prefix}.weight", (width,), 1.0)


def index_document(components: list) -> dict[str, Any]:
    """Return the content of `model.safetensors.index.json`: which file holds each tensor."""
    return {
        "metadata": {"total_size": sum(component.nbytes for component in components)},
        "weight_map": {weight.name: component.path for component in components for weight in component.weights},
    }


def rounded(value: float, step: float) -> float:
    """Round to a multiple of `step`, so that values from transcendental functions are the same on every machine."""
    return round(value / step) * step
