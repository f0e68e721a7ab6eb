"""Seeded weights made directly as bytes of a number format: FP8 E4M3, pairs of FP4 E2M1, E8M0 scales.

Byte i is an integer function of byte i of the tensor's Philox stream (see `seeded.py` for the stream), so any
range of a tensor can be made on its own and the bytes are the same everywhere. Needs numpy only.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from .seeded import GENERATOR, Recipe, RecipeError, recipe_chunks, stream_key

if TYPE_CHECKING:
    import numpy as np

BYTE_GENERATOR = "philox-byte-table-v1"
FORMATS = ("e2m1x2", "e4m3", "e8m0")
BYTES_PER_COUNTER = 32
CHUNK_BYTES = 2**21


@dataclass(frozen=True)
class ByteRecipe:
    """How the bytes of one tensor are made from the uniform bytes u of its stream.

    format: "e2m1x2" (u itself: two uniform FP4 codes, the even element in the low nibble), "e4m3" (the E4M3FN
        code nearest to (2 * u - 255) / 128, ties to even: uniform in -2..2, never zero or NaN), or "e8m0"
        (low + (u * levels >> 8): exponents low .. low + levels - 1).
    low, levels: of e8m0; 0 for the other formats. dtype: always "int8", as such bytes travel in a dataset.
    """

    seed: int
    tensor: str
    shape: tuple[int, ...]
    format: str
    low: int = 0
    levels: int = 0
    dtype: str = "int8"
    generator: str = BYTE_GENERATOR

    def __post_init__(self):
        counts = (self.seed, self.low, self.levels, *self.shape)
        scale = self.levels >= 1 and self.low + self.levels <= 255
        sane = (
            self.generator == BYTE_GENERATOR
            and self.dtype == "int8"
            and self.format in FORMATS
            and isinstance(self.tensor, str)
            and self.tensor != ""
            and isinstance(self.shape, tuple)
            and all(type(value) is int and value >= 0 for value in counts)
            and (scale if self.format == "e8m0" else self.low == self.levels == 0)
        )
        if not sane:
            raise RecipeError(
                expected=f"a {BYTE_GENERATOR} recipe of a format of {', '.join(FORMATS)}",
                found=str(self),
                where=str(self.tensor),
                remedy="write the checkpoint or the record again",
            )

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape)}


def recipe_from_json(value: dict[str, Any]) -> Recipe | ByteRecipe:
    """The recipe of a JSON object, by its generator; RecipeError for unknown or missing keys or values."""
    generator = value.get("generator") if isinstance(value, dict) else None
    if generator != BYTE_GENERATOR:
        return Recipe.from_json(value)
    names = {field.name for field in fields(ByteRecipe)}
    if set(value) != names or not isinstance(value["shape"], list):
        raise RecipeError(
            expected=f"exactly the keys {sorted(names)}",
            found=str(sorted(value)),
            where="seeded recipe",
            remedy="write the checkpoint or the record again",
        )
    return ByteRecipe(**{**value, "shape": tuple(value["shape"])})


def storage_chunks(recipe: Recipe | ByteRecipe) -> Iterator[bytes]:
    """The tensor's storage bytes, row-major, in pieces, whatever its generator."""
    return recipe_chunks(recipe) if recipe.generator == GENERATOR else byte_chunks(recipe)


def byte_chunks(recipe: ByteRecipe, start: int = 0, count: int | None = None) -> Iterator[bytes]:
    """Bytes `start .. start + count` (default: to the end) in pieces; memory stays at a few chunks."""
    end = recipe.nbytes if count is None else start + count
    table = byte_table(recipe)
    for first in range(start, end, CHUNK_BYTES):
        uniform = _uniform_bytes(recipe, first, min(CHUNK_BYTES, end - first))
        yield (uniform if recipe.format == "e2m1x2" else table[uniform]).tobytes()


def _uniform_bytes(recipe: ByteRecipe, start: int, count: int) -> "np.ndarray":
    import numpy as np

    counter, skip = divmod(start, BYTES_PER_COUNTER)
    philox = np.random.Philox(key=stream_key(recipe.seed, recipe.tensor), counter=counter)
    words = philox.random_raw(-(-(skip + count) // 8))
    return words.astype("<u8").view(np.uint8)[skip : skip + count]


def byte_table(recipe: ByteRecipe) -> "np.ndarray":
    """uint8 [256]: the stored byte of each uniform byte."""
    import numpy as np

    if recipe.format == "e4m3":
        return np.array([e4m3_code(2 * u - 255) for u in range(256)], dtype=np.uint8)
    if recipe.format == "e8m0":
        return np.array([recipe.low + (u * recipe.levels >> 8) for u in range(256)], dtype=np.uint8)
    return np.arange(256, dtype=np.uint8)


def e4m3_code(numerator: int) -> int:
    """The E4M3FN code nearest to numerator / 128, ties to even; numerator odd, magnitude 1..255."""
    magnitude, sign = abs(numerator), 0x80 if numerator < 0 else 0
    if magnitude == 1:
        return sign | 4  # 2**-7 is subnormal: four units of 2**-9
    exponent = magnitude.bit_length() - 1
    eighths, rest = divmod(magnitude * 8, 1 << exponent)
    half = 1 << exponent >> 1
    eighths += rest > half or (rest == half and eighths % 2 == 1)
    return sign | (exponent << 3) + (eighths - 8)
