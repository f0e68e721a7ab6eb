"""Neighborhood attention references against a float64 brute force and flex_attention."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from helpers.mutations.neighborhood_attention import MUTATIONS, NAMES
from helpers.reference_checks import (
    GIB,
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    normal,
    temporary_bytes,
    without_constants,
)

DIM = 64
FIRST, LAST = "neighborhood_attention_3d_h32_d64_w3x7x7", "neighborhood_attention_3d_h4_d64_w11x11x11"
# Small grids with border and interior windows on each axis, not multiples of the reference's tile.
GRIDS = {(3, 7, 7): (5, 9, 10), (3, 5, 5): (6, 9, 7), (11, 11, 11): (12, 11, 13)}


def qkv(grid, heads: int, dim: int = DIM, seed: int = 0, samples: int = 1) -> list[torch.Tensor]:
    """q is scaled as the engine scales it, so scores are of order one."""
    q, k, v = (normal(samples, *grid, heads, dim, seed=3 * seed + i) for i in range(3))
    return [q * dim**-0.5, k, v]


def most_central_range(position: int, length: int, window: int) -> range:
    """Of all ranges of `window` positions inside the axis, the one whose middle is nearest to the query."""
    return min(
        (range(s, s + window) for s in range(length - window + 1)),
        key=lambda keys: abs((keys[0] + keys[-1]) / 2 - position),
    )


def axis_visibility(length: int, window: int) -> np.ndarray:
    return np.array(
        [[key in most_central_range(query, length, window) for key in range(length)] for query in range(length)]
    )


def exact_attention(q, k, v, window) -> torch.Tensor:
    """Float64 attention of every position to every position, hidden ones weighted zero."""
    grid = q.shape[1:4]
    t, y, x = (axis_visibility(*axis) for axis in zip(grid, window))
    visible = np.kron(t, np.kron(y, x))
    assert (visible.sum(axis=1) == np.prod(window)).all()
    flat = [part.flatten(1, 3).double().numpy() for part in (q, k, v)]
    weights = np.exp(np.einsum("bihd,bjhd->bhij", *flat[:2], optimize=True)) * visible
    weights /= weights.sum(axis=-1, keepdims=True)
    o = np.einsum("bhij,bjhd->bihd", weights, flat[2], optimize=True)
    return torch.from_numpy(o).reshape(q.shape)


@cache
def case(name: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    heads, window = NAMES[name]
    inputs = qkv(GRIDS[window], heads)
    return inputs, exact_attention(*inputs, window)


def check_oracle(name: str, run) -> None:
    inputs, exact = case(name)
    assert_rounded_once(run(*inputs), exact)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_exact_attention_rounded_once(name, reference):
    check_oracle(name, reference(name))


@st.composite
def axes(draw):
    """(length, window, tile): odd windows up to the whole axis, tiles shorter and longer than it."""
    window = draw(st.sampled_from([1, 3, 5]))
    return draw(st.integers(window, 7)), window, draw(st.integers(1, 8))


@settings(deadline=None, max_examples=30)
@given(axes=st.tuples(axes(), axes(), axes()), samples=st.integers(1, 2), seed=st.integers(0, 99))
def test_any_grid_window_and_tile(reference, axes, samples, seed):
    grid, window, tile = zip(*axes)
    run = reference(FIRST)
    run.__globals__.update(H=2, D=8, WINDOW=window, TILE=tile)
    q, k, v = qkv(grid, heads=2, dim=8, seed=seed, samples=samples)
    assert_rounded_once(run(q, k, v), exact_attention(q, k, v, window))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", [FIRST, "neighborhood_attention_3d_h8_d64_w3x5x5"])
def test_flex_attention_agrees(name, reference):
    """A border query sees what the nearest query with a full window sees: keys near the clamped query."""
    (q, k, v), _ = case(name)
    _, T, Y, X, _, _ = q.shape
    window = NAMES[name][1]

    def near(i, j, length, size):
        return (j - i.clamp(size // 2, length - 1 - size // 2)).abs() <= size // 2

    def visible(_b, _h, i, j):
        return (
            near(i // (Y * X), j // (Y * X), T, window[0])
            & near(i // X % Y, j // X % Y, Y, window[1])
            & near(i % X, j % X, X, window[2])
        )

    mask = create_block_mask(visible, None, None, T * Y * X, T * Y * X, device="cpu")
    flat = [part.float().flatten(1, 3).transpose(1, 2) for part in (q, k, v)]
    o = flex_attention(*flat, block_mask=mask, scale=1.0)
    assert_rounded_once(reference(name)(q, k, v), o.transpose(1, 2).reshape(q.shape).double())


def test_window_equal_to_the_grid_is_plain_attention(reference):
    q, k, v = qkv((3, 7, 7), 32)
    flat = [x.flatten(1, 3).transpose(1, 2).double() for x in (q, k, v)]
    o = torch.nn.functional.scaled_dot_product_attention(*flat, scale=1.0)
    assert_rounded_once(reference(FIRST)(q, k, v), o.transpose(1, 2).reshape(q.shape))


@pytest.mark.parametrize(
    "query, sees, misses",
    [
        ((0, 0, 0), [(0, 0, 0), (2, 6, 6)], [(3, 0, 0), (0, 7, 0), (0, 0, 7)]),  # corner: shifted, not truncated
        ((4, 8, 9), [(2, 2, 3), (4, 8, 9)], [(1, 8, 9), (4, 1, 9), (4, 8, 2)]),  # the opposite corner
        ((2, 4, 4), [(1, 1, 1), (3, 7, 7)], [(0, 4, 4), (2, 0, 4), (2, 8, 4), (2, 4, 0), (2, 4, 8)]),
    ],
)
def test_who_sees_whom(reference, query, sees, misses):
    """Equal scores: a value of 147 at one position shows as exactly 1 in each query that sees it."""
    grid = (5, 9, 10)
    for position in sees + misses:
        zero = torch.zeros(1, *grid, 32, DIM, dtype=torch.bfloat16)
        v = zero.clone()
        v[(0, *position)] = 147
        o = reference(FIRST)(zero, zero, v)
        assert (o[(0, *query)] == (position in sees)).all()


@settings(deadline=None, max_examples=10)
@given(step=st.tuples(st.integers(0, 4), st.integers(0, 8), st.integers(0, 9)))
def test_values_outside_the_window_have_no_influence(reference, step):
    (q, k, v), _ = case(FIRST)
    windows = [most_central_range(i, n, w) for i, n, w in zip(step, q.shape[1:4], (3, 7, 7))]
    inside = np.ix_(*windows)
    outside = torch.ones(q.shape[1:4], dtype=torch.bool)
    outside[inside] = False
    k, changed = k.clone(), v.clone()
    before = reference(FIRST)(q, k, v)[(0, *step)]
    k[0, outside], changed[0, outside] = 100.0, 1e30
    assert torch.equal(before, reference(FIRST)(q, k, changed)[(0, *step)])


@pytest.mark.parametrize("name", NAMES)
def test_temporaries_do_not_grow_with_the_grid(name, reference):
    """The largest published grid is 121x80x128; tiles bound every temporary, so these grids show its peak."""
    heads, window = NAMES[name]
    tile = reference(name).__globals__["TILE"]
    largest = []
    for grid in ((20, 32, 32), (24, 32, 48)):
        inputs = [torch.empty(1, *grid, heads, DIM, dtype=torch.bfloat16, device="meta") for _ in range(3)]
        largest.append(temporary_bytes(reference(name), *inputs)[0])
    keys = np.prod([t + w - 1 for t, w in zip(tile, window)])
    assert largest[0] == largest[1] == 4 * heads * np.prod(tile) * keys <= GIB / 16


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_precision_of_the_caller_survive(name, reference):
    assert_leaves_caller_alone(reference(name), *case(name)[0])


def test_references_differ_only_in_constants(definition):
    assert len({without_constants(definition(name)["reference"], "H|WINDOW") for name in NAMES}) == 1
    for name, (heads, window) in NAMES.items():
        axes = {axis: spec.get("value") for axis, spec in definition(name)["axes"].items()}
        assert (axes["H"], axes["D"]) == (heads, DIM) and (axes["WT"], axes["WY"], axes["WX"]) == window
        assert f"\nH = {heads}\nD = {DIM}\nWINDOW = {window}" in definition(name)["reference"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation[0]}: {mutation[1]}")
def test_mutations_are_caught(definition, mutation):
    name, _, old, new = mutation
    with pytest.raises(AssertionError):
        check_oracle(name, mutated_reference(definition(name), old, new))
