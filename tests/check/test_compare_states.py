"""The criterion of chunked recurrent states: three relative errors, each able to fail alone."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.check.states import StateLimits, compare_states


def states(*shape: int) -> torch.Tensor:
    """Values of both signs between 0.5 and 1.5 in size, the largest being 1.5."""
    count = math.prod(shape)
    values = 0.5 + (torch.arange(count) * 7 % 101 / 100)
    values[::3] *= -1
    values[0] = 1.5
    return values.reshape(shape)


def test_equal_states_pass_with_all_figures():
    result = compare_states(states(2, 3, 8, 8), states(2, 3, 8, 8), head_axis=1)
    assert result.passed and result.elements == 384
    assert (result.relative_rms, result.max_error, result.head_relative_rms) == (0.0, 0.0, 0.0)
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["status"] == "pass"


def test_relative_rms_alone():
    want = states(2, 3, 8, 8)
    assert compare_states(want * 1.0099, want, 1).passed
    result = compare_states(want * 1.012, want, 1)
    assert result.status == "mismatch"
    assert result.relative_rms == pytest.approx(0.012, rel=1e-3)
    assert result.max_error < 0.015 and result.head_relative_rms < 0.02


def test_largest_error_alone():
    want = states(4, 3, 16, 16)
    got = want.clone()
    got[3, 2, 5, 5] += 1.5 * 0.016
    result = compare_states(got, want, 1)
    assert result.status == "mismatch" and result.max_error == pytest.approx(0.016, rel=1e-3)
    assert result.relative_rms < 0.001 and result.head_relative_rms < 0.02


def test_one_head_alone():
    want = states(2, 4, 8, 8)
    want[:, 1] *= 0.01
    got = want.clone()
    got[:, 1] *= 1.03
    result = compare_states(got, want, 1)
    assert result.status == "mismatch" and result.worst[1] == 1
    assert result.head_relative_rms == pytest.approx(0.03, rel=1e-3)
    assert result.relative_rms < 0.001 and result.max_error < 0.001


def test_one_head_of_one_sequence_is_not_hidden_by_the_others():
    want = states(3, 2, 8, 8)
    want[2, 1] *= 0.01
    got = want.clone()
    got[2, 1] *= 1.03
    result = compare_states(got, want, 1)
    assert result.status == "mismatch" and result.worst == [2, 1]
    assert result.pooled_head_relative_rms < 0.001 < result.head_relative_rms


@pytest.mark.parametrize("shape, head_axis", [((6, 8, 8), 0), ((2, 3, 8, 8), 1), ((2, 2, 3, 8), 2)])
def test_head_axis(shape, head_axis):
    want = states(*shape)
    got = want.clone()
    last = tuple(size - 1 for size in shape[: head_axis + 1])
    got[last] *= 1.5
    assert compare_states(got, want, head_axis).worst == list(last)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["actual", "expected"])
def test_non_finite_comes_first(value, side):
    tensors = {"actual": states(2, 3, 4, 4), "expected": states(2, 3, 4, 4)}
    tensors[side][1, 2, 3, 3] = value
    result = compare_states(tensors["actual"], tensors["expected"], 1)
    assert (result.status, result.non_finite) == ("non_finite", 1)
    json.dumps(result.to_json(), allow_nan=False)


def test_equal_infinities_do_not_pass():
    broken = torch.full((1, 2, 4, 4), math.inf)
    assert compare_states(broken, broken, 1).non_finite == 32


def test_nothing_compared_is_not_a_pass():
    assert compare_states(torch.zeros(0, 3, 8, 8), torch.zeros(0, 3, 8, 8), 1).status == "empty"


def test_shape_and_dtype_must_be_the_same():
    want = states(2, 3, 4, 4)
    assert compare_states(want.transpose(0, 1), want, 1).status == "shape"
    assert compare_states(want.double(), want, 1).status == "dtype"
    assert compare_states(want.int(), want.int(), 1).status == "dtype"


def test_zero_heads():
    want = states(2, 3, 4, 4)
    want[1, 2] = 0
    assert compare_states(want, want, 1).passed
    got = want.clone()
    got[1, 2, 0, 0] = 1e-6
    result = compare_states(got, want, 1)
    assert (result.status, result.zero_heads) == ("mismatch", 1)
    assert compare_states(got, torch.zeros_like(got), 1).status == "mismatch"


def test_limits_are_the_rule():
    assert StateLimits() == StateLimits(relative_rms=0.01, max_error=0.015, head_relative_rms=0.02)
    want = states(1, 2, 4, 4)
    assert compare_states(want * 1.2, want, 1, StateLimits(0.3, 0.3, 0.3)).passed


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.integers(0, 2**32))
def test_figures_match_the_formulas(sequences, heads, rest, seed):
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(sequences, heads, rest, generator=generator)
    got = want + 0.01 * torch.randn(sequences, heads, rest, generator=generator)
    result = compare_states(got, want, 1)
    error, exact = (got.double() - want.double()).numpy(), want.double().numpy()
    assert result.relative_rms == pytest.approx(float((error**2).sum() ** 0.5 / (exact**2).sum() ** 0.5))
    assert result.max_error == pytest.approx(float(abs(error).max() / abs(exact).max()))
    each = (error**2).sum(-1) ** 0.5 / (exact**2).sum(-1) ** 0.5
    assert result.head_relative_rms == pytest.approx(float(each.max()))
    pooled = (error**2).sum((0, 2)) ** 0.5 / (exact**2).sum((0, 2)) ** 0.5
    assert result.pooled_head_relative_rms == pytest.approx(float(pooled.max()))
    worst = (result.relative_rms <= 0.01, result.max_error <= 0.015, result.head_relative_rms <= 0.02)
    assert result.passed == all(worst)
