"""The bit-exact generator: golden hashes, exactness, statistics, independence of chunking."""

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.seeded_bytes import recipe_bytes
from inference_kernels.seeded.recipes import (
    LANE_SUM_STD,
    Recipe,
    RecipeError,
    exact_values,
    gives_bytes,
    recipe_chunks,
    recipe_for_std,
    round_to_bfloat16,
)

GOLDEN = [
    (
        Recipe(0, "transformer/transformer_blocks.0.attn.to_q.weight", (4096, 4096), "bfloat16", 55, 27),
        "9e420bbd2e9e0ed2bb64b18e50f6f2d198adbe24781c78192e6c0bb8042035ac",
    ),
    (
        Recipe(7, "vae/decoder.conv_in.weight", (16, 64, 3, 3), "bfloat16", 33, 24),
        "850b04356b19f862a2043ddf3ce9b05d4570885b11500f3c940942fe8184b011",
    ),
    (Recipe(42, "a", (1001,), "float32", 64, 20), "08d1f2e18e639de5d5f86dcdafcb853ec371ebb285d883a75e15ae5792e6df5b"),
]


def sample(**changes) -> Recipe:
    return Recipe(
        **{"seed": 3, "tensor": "t", "shape": (50_000,), "dtype": "float32", "multiplier": 41, "shift": 22, **changes}
    )


@pytest.mark.parametrize("recipe, digest", GOLDEN, ids=lambda value: getattr(value, "tensor", ""))
def test_bytes_are_the_golden_ones(recipe, digest):
    total = hashlib.sha256()
    for chunk in recipe_chunks(recipe):
        total.update(chunk)
    assert total.hexdigest() == digest


def test_values_are_the_exact_scaled_lane_sums():
    recipe = sample(shape=(9,))
    # Written out with Python integers, lane by lane.
    key = np.frombuffer(hashlib.sha256(b"3:t").digest()[:16], dtype="<u8").astype(np.uint64)
    words = [int(word) for word in np.random.Philox(key=key).random_raw(9)]
    sums = [sum((word >> lane) & 0xFFFF for lane in (0, 16, 32, 48)) - 131070 for word in words]
    assert exact_values(recipe, 0, 9).tolist() == [value * 41 / 2**22 for value in sums]


def test_mean_and_deviation_are_those_of_the_recipe():
    recipe = sample(shape=(1_000_000,))
    values = exact_values(recipe, 0, 1_000_000).astype(np.float64)
    # Five standard errors; the variance of a squared sum of four uniforms is below 2 sigma^4.
    assert abs(values.mean()) < 5 * recipe.std() / 1000
    assert abs(values.std() / recipe.std() - 1) < 5 * math.sqrt(2) / 2 / 1000
    assert np.abs(values).max() <= 131070 * 41 / 2**22


def test_rounding_is_that_of_torch():
    recipe = sample(dtype="bfloat16", shape=(200_000,))
    exact = exact_values(recipe, 0, recipe.elements)
    expected = torch.from_numpy(exact).to(torch.bfloat16).view(torch.int16)
    assert recipe_bytes(recipe) == expected.numpy().tobytes()


def test_rounding_of_ties_goes_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000], dtype=np.uint32)
    assert round_to_bfloat16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF82]


@settings(deadline=None, max_examples=25)
@given(elements=st.integers(0, 400), chunk=st.integers(1, 77), dtype=st.sampled_from(["bfloat16", "float32"]))
def test_chunks_of_any_size_give_the_same_bytes(elements, chunk, dtype):
    recipe = sample(shape=(elements,), dtype=dtype)
    whole = recipe_bytes(recipe)
    assert len(whole) == recipe.nbytes
    assert b"".join(recipe_chunks(recipe, chunk_words=chunk)) == whole


def test_gives_bytes_compares_all_of_them():
    recipe = sample(shape=(300_000,), dtype="bfloat16")
    data = bytearray(recipe_bytes(recipe))
    assert gives_bytes(recipe, data)
    assert not gives_bytes(recipe, data + b"\0") and not gives_bytes(recipe, data[:-1])
    data[-1] ^= 1
    assert not gives_bytes(recipe, data)


def test_seed_and_name_select_different_streams():
    streams = {
        recipe_bytes(sample(shape=(8,), **change)) for change in ({}, {"seed": 4}, {"tensor": "u"}, {"tensor": "t2"})
    }
    assert len(streams) == 4


@settings(deadline=None, max_examples=50)
@given(std=st.floats(1e-6, 1000))
def test_recipe_for_std_is_near_and_in_range(std):
    recipe = recipe_for_std(std, 0, "t", (4,))
    assert 33 <= recipe.multiplier <= 64
    assert abs(recipe.std() / std - 1) <= 0.5 / 32.5
    assert recipe.std() == pytest.approx(LANE_SUM_STD * recipe.multiplier / 2**recipe.shift)


def test_json_round_trip():
    recipe = sample(shape=(2, 3))
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    "change, word",
    [
        ({"generator": "mersenne"}, "philox-uniform-sum-v1"),
        ({"colour": 1}, "colour"),
        ({"multiplier": 65}, "65"),
        ({"dtype": "float16"}, "float16"),
        ({"shift": -1}, "-1"),
        ({"shape": [-1]}, "-1"),
        ({"seed": True}, "True"),
        ({"shape": "12"}, "12"),
        ({"tensor": ""}, "''"),
    ],
)
def test_bad_recipes_are_refused_by_name(change, word):
    with pytest.raises(RecipeError, match=word):
        Recipe.from_json({**sample().to_json(), **change})


def test_missing_key_is_refused():
    value = sample().to_json()
    del value["seed"]
    with pytest.raises(RecipeError, match="seed"):
        Recipe.from_json(value)
