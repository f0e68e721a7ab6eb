"""The kinds of tensors in a seeded language-model checkpoint. Standard library and numpy only.

Each kind has what `seeded/checkpoint.py` asks of a weight: name, shape, dtype_name, nbytes, entry, chunks.
Streams are keyed by the tensor's own name: how tensors are spread over files changes nothing.
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
    """The two bytes of a value that bfloat16 holds exactly; ValueError for any other."""
    low, high = struct.unpack("<HH", struct.pack("<f", value))
    if low or struct.unpack("<f", struct.pack("<HH", 0, high))[0] != value:
        raise ValueError(f"{value} is not a bfloat16 number")
    return struct.pack("<H", high)


@dataclass(frozen=True)
class Drawn:
    """Values of mean 0 and standard deviation `std` (see `seeded.recipe_for_std`)."""

    name: str
    shape: tuple[int, ...]
    std: float
    dtype: str = "bfloat16"

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_NAMES[self.dtype][1]

    def recipe(self, seed: int) -> Recipe:
        return recipe_for_std(self.std, seed, self.name, self.shape, self.dtype)

    def entry(self, seed: int, component: str) -> dict[str, Any]:
        return self.recipe(seed).to_json()

    def chunks(self, seed: int, component: str) -> Iterator[bytes]:
        return recipe_chunks(self.recipe(seed))


@dataclass(frozen=True)
class Listed:
    """Given values, repeated to fill the shape: one value for a constant, all of them for a short list."""

    name: str
    shape: tuple[int, ...]
    values: tuple[float, ...]
    dtype: str = "bfloat16"

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_NAMES[self.dtype][1]

    def entry(self, seed: int, component: str) -> dict[str, Any]:
        return {"tensor": self.name, "shape": list(self.shape), "dtype": self.dtype, "constant": list(self.values)}

    def chunks(self, seed: int, component: str) -> Iterator[bytes]:
        if self.dtype == "bfloat16":
            once = b"".join(map(bfloat16_bytes, self.values))
        else:
            once = struct.pack(f"<{len(self.values)}f", *self.values)
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

    def entry(self, seed: int, component: str) -> dict[str, Any]:
        return {"tensor": self.name, "rows": [part.entry(seed, component) for part in self.parts]}

    def chunks(self, seed: int, component: str) -> Iterator[bytes]:
        for part in self.parts:
            yield from part.chunks(seed, component)


@dataclass(frozen=True)
class Coded:
    """Bytes of a number format: a stream of its own, or a part of the stream of a `bank` of many tensors.

    bank, bank_shape, start: the logical tensor that an engine joins such tensors to, and the first byte in
    it.
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

    def recipe(self, seed: int) -> ByteRecipe:
        """Of the whole stream: the bank's, if the tensor is part of one."""
        return ByteRecipe(
            seed, self.bank or self.name, self.bank_shape or self.shape, self.format, self.low, self.levels
        )

    def entry(self, seed: int, component: str) -> dict[str, Any]:
        if self.bank is None:
            return self.recipe(seed).to_json()
        return {
            "tensor": self.name,
            "shape": list(self.shape),
            "part_of": self.bank,
            "start": self.start,
            "bank_recipe": {
                key: value
                for key, value in self.recipe(seed).to_json().items()
                if key in ("generator", "seed", "format", "low", "levels")
            },
        }

    def chunks(self, seed: int, component: str) -> Iterator[bytes]:
        return byte_chunks(self.recipe(seed), self.start, self.nbytes)


def index_document(components: list) -> dict[str, Any]:
    """The content of `model.safetensors.index.json`: which file holds each tensor."""
    return {
        "metadata": {"total_size": sum(component.nbytes for component in components)},
        "weight_map": {weight.name: component.path for component in components for weight in component.weights},
    }


def rounded(value: float, step: float) -> float:
    """The multiple of `step` nearest to a value that comes from transcendental functions: the same
    everywhere.
    """
    return round(value / step) * step


DTYPE, DTYPE_NAME, ITEM_BYTES = "bfloat16", "BF16", 2


# bfloat16 is the upper half of float32; these constants are exact in it.
CONSTANT_BYTES = {0.0: b"\x00\x00", 1.0: b"\x80\x3f", 1.5: b"\xc0\x3f"}


@dataclass(frozen=True)
class Weight:
    """One tensor of a checkpoint: drawn with `gain / sqrt(fan_in)`, or filled with `constant`."""

    name: str
    shape: tuple[int, ...]
    gain: float = 1.0
    constant: float | None = None
    dtype_name = DTYPE_NAME

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES

    def recipe(self, seed: int, component: str) -> Recipe | None:
        """The recipe, or None for a constant."""
        if self.constant is not None:
            return None
        std = self.gain / math.sqrt(math.prod(self.shape[1:]))
        return recipe_for_std(std, seed, f"{component}/{self.name}", self.shape, DTYPE)

    def entry(self, seed: int, component: str) -> dict[str, Any]:
        recipe = self.recipe(seed, component)
        constant = {
            "tensor": f"{component}/{self.name}",
            "shape": list(self.shape),
            "dtype": DTYPE,
            "constant": self.constant,
        }
        return recipe.to_json() if recipe else constant

    def chunks(self, seed: int, component: str) -> Iterator[bytes]:
        recipe = self.recipe(seed, component)
        if recipe is None:
            yield CONSTANT_BYTES[self.constant] * math.prod(self.shape)
        else:
            yield from recipe_chunks(recipe)


def affine(prefix: str, shape: tuple[int, ...], gain: float = 1.0) -> Iterator[Weight]:
    """Weight and zero bias of a layer; shape: outputs first."""
    yield Weight(f"{prefix}.weight", shape, gain=gain)
    yield Weight(f"{prefix}.bias", (shape[0],), constant=0.0)


def norm(prefix: str, width: int) -> Weight:
    return Weight(f"{prefix}.weight", (width,), constant=1.0)
