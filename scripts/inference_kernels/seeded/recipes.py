"""Make seeded weights bit for bit: a recipe gives the same bytes on every machine and library version.

Only integer arithmetic, one exact float32 conversion and one rounding are used, no transcendental function.
The words come from Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) through
`numpy.random.Philox.random_raw`, whose stream numpy keeps stable (NEP 19). Needs numpy only.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import DatasetError

if TYPE_CHECKING:
    import numpy as np

GENERATOR = "philox-uniform-sum-v1"
# Four 16-bit lanes per word, 0..65535 each: their sum less its mean lies in -131070..131070 (18 bits).
LANE_SUM_MEAN = 2 * 65535
LANE_SUM_STD = math.sqrt((2**32 - 1) / 3)
# 131070 * 64 < 2**23, so the product is exact in a float32's 24 bits; the shift changes the exponent only.
MAX_MULTIPLIER = 64
MAX_SHIFT = 100
WORDS_PER_COUNTER = 4
CHUNK_WORDS = 2**18
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
BYTE_GENERATOR = "philox-byte-table-v1"
FORMATS = ("e2m1x2", "e4m3", "e8m0")
BYTES_PER_COUNTER = 32
# Far above the largest weight of any model: a shape beyond it is damage, and would fill the disk.
ELEMENT_LIMIT = 2**40
CHUNK_BYTES = 2**21


class RecipeError(DatasetError):
    """A recipe with unknown or missing keys, an unknown generator, or a value out of range."""


@dataclass(frozen=True)
class Recipe:
    """How the bytes of one tensor are made: element i is `lane_sum(word i) * multiplier * 2**-shift`.

    seed, tensor: the key of the stream; `tensor` is the name in the checkpoint, its component in front.
    shape: any; elements in row-major order. dtype: "bfloat16" (rounded to nearest even) or "float32" (exact).
    multiplier: 1..64. shift: power of two, 0..100.
    """

    seed: int
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    multiplier: int
    shift: int
    generator: str = GENERATOR

    def __post_init__(self):
        self._require(self.generator == GENERATOR, f"generator {GENERATOR!r}", repr(self.generator))
        self._require(self.dtype in ITEM_BYTES, "dtype bfloat16 or float32", repr(self.dtype))
        self._require(isinstance(self.tensor, str) and self.tensor != "", "a tensor name", repr(self.tensor))
        self._require(_is_count(self.seed), "a seed >= 0", repr(self.seed))
        self._require(
            isinstance(self.shape, tuple) and all(map(_is_count, self.shape)), "a shape of sizes >= 0", repr(self.shape)
        )
        self._require(self.elements <= ELEMENT_LIMIT, f"at most {ELEMENT_LIMIT:,} elements", repr(self.shape)[:200])
        self._require(
            _is_count(self.multiplier) and 1 <= self.multiplier <= MAX_MULTIPLIER,
            f"a multiplier of 1..{MAX_MULTIPLIER}",
            repr(self.multiplier),
        )
        self._require(_is_count(self.shift) and self.shift <= MAX_SHIFT, f"a shift of 0..{MAX_SHIFT}", repr(self.shift))

    def _require(self, holds: bool, expected: str, found: str) -> None:
        if not holds:
            raise _bad_recipe(expected, found, str(self.tensor))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    def std(self) -> float:
        """Return the standard deviation of the values before rounding; their mean is 0."""
        return LANE_SUM_STD * self.multiplier * 2.0**-self.shift

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Recipe":
        """Read the recipe of a JSON object; RecipeError for unknown or missing keys or values out of range."""
        names = {field.name for field in fields(cls)}
        if not isinstance(value, dict) or set(value) != names:
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise _bad_recipe(f"exactly the keys {sorted(names)}", str(found), "seeded recipe")
        shape = value["shape"]
        return cls(**{**value, "shape": tuple(shape) if isinstance(shape, list) else shape})


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _bad_recipe(expected: str, found: str, where: str) -> RecipeError:
    return RecipeError(
        expected=expected, found=found, where=where, remedy="write the checkpoint or the record again with this version"
    )


def recipe_for_std(std: float, seed: int, tensor: str, shape: tuple[int, ...], dtype: str = "bfloat16") -> Recipe:
    """Return the recipe whose standard deviation is nearest to `std` (within 1.6 %), multiplier 33..64."""
    if not 1e-20 < std <= LANE_SUM_STD * MAX_MULTIPLIER:
        raise _bad_recipe(f"a standard deviation of 1e-20..{LANE_SUM_STD * MAX_MULTIPLIER:.0f}", f"{std}", tensor)
    shift = math.floor(math.log2(MAX_MULTIPLIER * LANE_SUM_STD / std))
    multiplier = round(std * 2.0**shift / LANE_SUM_STD)
    if multiplier <= MAX_MULTIPLIER // 2:
        multiplier, shift = MAX_MULTIPLIER, shift + 1
    return Recipe(seed, tensor, tuple(shape), dtype, multiplier, shift)


def stream_key(seed: int, tensor: str) -> "np.ndarray":
    """Return the Philox key: the first 16 bytes of SHA-256 of `seed:tensor`, as two little-endian words."""
    import numpy as np

    digest = hashlib.sha256(f"{seed}:{tensor}".encode()).digest()
    return np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)


def exact_values(recipe: Recipe, start: int, count: int) -> "np.ndarray":
    """Return elements `start..start+count` before rounding, as exact float32; any range can be made on its own."""
    import numpy as np

    first, skip = divmod(start, WORDS_PER_COUNTER)
    philox = np.random.Philox(key=stream_key(recipe.seed, recipe.tensor), counter=first)
    words = philox.random_raw(skip + count)[skip:]
    low_lanes = np.uint64(0x0000FFFF0000FFFF)
    pairs = (words & low_lanes) + ((words >> np.uint64(16)) & low_lanes)
    sums = (pairs & np.uint64(0xFFFFFFFF)) + (pairs >> np.uint64(32))
    centred = sums.astype(np.int32) - np.int32(LANE_SUM_MEAN)
    exact = (centred * np.int32(recipe.multiplier)).astype(np.float32)
    return np.ldexp(exact, np.int32(-recipe.shift))


def round_to_bfloat16(values: "np.ndarray") -> "np.ndarray":
    """Round finite float32 values to bfloat16 bit patterns (uint16), to nearest, ties to even."""
    import numpy as np

    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def recipe_chunks(recipe: Recipe, chunk_words: int = CHUNK_WORDS) -> Iterator[bytes]:
    """Yield the tensor's storage bytes (little-endian, row-major); memory stays at a few chunks."""
    for start in range(0, recipe.elements, chunk_words):
        values = exact_values(recipe, start, min(chunk_words, recipe.elements - start))
        if recipe.dtype == "bfloat16":
            yield round_to_bfloat16(values).astype("<u2").tobytes()
        else:
            yield values.astype("<f4").tobytes()


def gives_bytes(recipe: Recipe, data: bytes) -> bool:
    """Tell whether `data` are exactly the recipe's storage bytes; compare chunk by chunk."""
    view, start = memoryview(data), 0
    for chunk in recipe_chunks(recipe):
        if view[start : start + len(chunk)] != chunk:
            return False
        start += len(chunk)
    return start == len(view)


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
            and self.nbytes <= ELEMENT_LIMIT
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
    """Read the recipe of a JSON object, by its generator; RecipeError for unknown or missing keys or values."""
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
    """Yield the tensor's storage bytes, row-major, whatever its generator."""
    return recipe_chunks(recipe) if recipe.generator == GENERATOR else byte_chunks(recipe)


def byte_chunks(recipe: ByteRecipe, start: int = 0, count: int | None = None) -> Iterator[bytes]:
    """Yield bytes `start .. start + count` (default: to the end); memory stays at a few chunks."""
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
    """Return uint8 [256]: the stored byte of each uniform byte."""
    import numpy as np

    if recipe.format == "e4m3":
        return np.array([e4m3_code(2 * u - 255) for u in range(256)], dtype=np.uint8)
    if recipe.format == "e8m0":
        return np.array([recipe.low + (u * recipe.levels >> 8) for u in range(256)], dtype=np.uint8)
    return np.arange(256, dtype=np.uint8)


def e4m3_code(numerator: int) -> int:
    """Return the E4M3FN code nearest to numerator / 128, ties to even; numerator odd, magnitude 1..255."""
    magnitude, sign = abs(numerator), 0x80 if numerator < 0 else 0
    if magnitude == 1:
        return sign | 4  # 2**-7 is subnormal: four units of 2**-9
    exponent = magnitude.bit_length() - 1
    eighths, rest = divmod(magnitude * 8, 1 << exponent)
    half = 1 << exponent >> 1
    eighths += rest > half or (rest == half and eighths % 2 == 1)
    return sign | (exponent << 3) + (eighths - 8)
