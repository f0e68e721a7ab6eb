"""Expert router reference against float64 scores and Python's own ordering, and against torch.topk."""

import math
from functools import cache

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.definition_checks import constants, constraints_hold
from helpers.mutations.expert_router import MUTATIONS, NAME
from helpers.reference_checks import assert_leaves_caller_alone, mutated_reference, normal, temporary_bytes

SMALL = dict(H=4, E=12)
NOISE = 1e-5  # ranks closer than this, but not equal, could be ordered either way by float32
NAN = float("nan")


def score(logit: float) -> float:
    softplus = logit if logit > 20 else math.log1p(math.exp(logit))
    return math.sqrt(softplus)


def routed(hidden_states, weight, bias, bias_vl, is_image, factor):
    """In float64: ids, weights, and the smallest gap from a sixth to a seventh rank that is no exact tie."""
    all_ids, all_weights, nearest = [], [], math.inf
    logits = hidden_states.double() @ weight.double().T
    for row, image in zip(logits.tolist(), is_image.tolist()):
        scores = [score(logit) for logit in row]
        rank = [value + shift for value, shift in zip(scores, (bias_vl if image else bias).tolist())]
        rank = [math.inf if math.isnan(value) else value for value in rank]
        order = sorted(range(len(rank)), key=lambda expert: (-rank[expert], expert))
        gap = rank[order[5]] - rank[order[6]]
        nearest = gap if 0 < gap < nearest else nearest
        ids = sorted(order[:6])
        total = sum(scores[expert] for expert in ids) + 1e-20
        all_ids.append(ids)
        all_weights.append([scores[expert] / total * factor for expert in ids])
    return torch.tensor(all_ids), torch.tensor(all_weights, dtype=torch.float64), nearest


def assert_routed(actual, expected) -> None:
    (ids, weights), (right_ids, right_weights, nearest) = actual, expected
    assert nearest > NOISE, "the case itself is ambiguous in float32"
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32
    assert torch.equal(ids.long(), right_ids)
    torch.testing.assert_close(weights.double(), right_weights, rtol=1e-5, atol=1e-12, equal_nan=True)


def quarters(seed: int, *shape: int) -> torch.Tensor:
    """BF16 multiples of 1/4 from -1 to 1: their products sum exactly, so equal rows tie exactly."""
    steps = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed))
    return (steps / 4).bfloat16()


def small_inputs(rows: int, seed: int = 0, levels: int = 2):
    """Twelve experts with few distinct weights and biases: many exact ties, also at the sixth place."""
    pick = torch.randint(levels, (3, 12), generator=torch.Generator().manual_seed(seed))
    weight = quarters(seed + 1, levels, 4)[pick[0]]
    bias, bias_vl = (torch.tensor([0.25, -0.5, 0.0, 0.75])[choice] for choice in pick[1:])
    return quarters(seed, rows, 4), weight, bias, bias_vl, torch.arange(rows) % 3 == 1


@cache
def real_case():
    """(inputs, expected) in true size: ordinary rows, one of large logits, one whose scores all underflow."""
    hidden = normal(12, 5120, seed=1)
    weight = normal(384, 5120, seed=2, scale=0.02)
    hidden[3] *= 64  # logits to about 250: the linear branch, and exp overflows in float32
    weight[:, 0], hidden[:, 0], hidden[5, 0] = 16.0, 0.0, -16.0  # logits of row 5 near -256: every score is 0
    bias, bias_vl = normal(384, seed=3, scale=0.2).float(), normal(384, seed=4, scale=0.2).float()
    inputs = (hidden, weight, bias, bias_vl, torch.arange(12) % 3 == 1)
    return inputs, routed(*inputs, 1.5)


def check_oracle(name: str, run) -> None:
    small = small_inputs(9)
    with constants(run, **SMALL):
        assert_routed(run(*small, 1.0), routed(*small, 1.0))
        small[2][7] = small[3][7] = NAN
        assert_routed(run(*small, 1.0), routed(*small, 1.0))
    inputs, expected = real_case()
    assert_routed(run(*inputs, 1.5), expected)


def test_reference_is_the_exact_selection(reference):
    check_oracle(NAME, reference(NAME))


def test_reference_selects_what_topk_selects(reference):
    (hidden, weight, bias, bias_vl, is_image), _ = real_case()
    score_ = torch.nn.functional.softplus(hidden.double() @ weight.double().T).sqrt()
    chosen = (score_ + torch.where(is_image[:, None], bias_vl, bias)).topk(6).indices.sort().values
    weights = score_.gather(1, chosen)
    ids, actual = reference(NAME)(hidden, weight, bias, bias_vl, is_image, 1.0)
    assert torch.equal(ids.long(), chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    torch.testing.assert_close(actual.double(), weights, rtol=1e-5, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 6), seed=st.integers(0, 10_000), levels=st.integers(1, 4), factor=st.sampled_from([1.0, 1.5])
)
def test_ties_go_to_the_lower_id(reference, rows, seed, levels, factor):
    inputs = small_inputs(rows, seed, levels)
    expected = routed(*inputs, factor)
    assume(expected[2] > NOISE)
    with constants(reference(NAME), **SMALL) as run:
        assert_routed(run(*inputs, factor), expected)


def test_all_experts_equal(reference):
    hidden, weight, bias = torch.ones(2, 5120).bfloat16(), torch.zeros(384, 5120).bfloat16(), torch.zeros(384)
    ids, weights = reference(NAME)(hidden, weight, bias, bias, torch.tensor([False, True]), 1.5)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    torch.testing.assert_close(weights, torch.full((2, 6), 0.25))


def test_exchanged_modalities_and_biases_cancel(reference):
    hidden, weight, bias, bias_vl, is_image = small_inputs(9)
    with constants(reference(NAME), **SMALL) as run:
        ids, weights = run(hidden, weight, bias, bias_vl, is_image, 1.0)
        swapped = run(hidden, weight, bias_vl, bias, ~is_image, 1.0)
        assert torch.equal(swapped[0], ids) and torch.equal(swapped[1], weights)
        assert not torch.equal(run(hidden, weight, bias, bias_vl, ~is_image, 1.0)[0], ids)


def test_a_nan_rank_wins_and_a_nan_token_takes_the_first_six(reference):
    hidden, weight, bias, bias_vl, is_image = small_inputs(4)
    bias[9], hidden[2, 1] = NAN, NAN
    with constants(reference(NAME), **SMALL) as run:
        ids, weights = run(hidden, weight, bias, bias_vl, is_image, 1.0)
    assert 9 in ids[0] and weights[0].isfinite().all()
    assert ids[2].tolist() == [0, 1, 2, 3, 4, 5] and weights[2].isnan().all()


def test_weights_vanish_with_the_scores(reference):
    (_, expected_weights, _) = real_case()[1]
    assert expected_weights[5].max() < 1e-9
    ids, weights = reference(NAME)(*real_case()[0], 1.5)
    assert (weights[5] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.full((12,), 1.5).index_fill(0, torch.tensor(5), 0))


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows, reference):
    inputs = small_inputs(3)
    with constants(reference(NAME), **SMALL) as run:
        ids, weights = run(*inputs, 1.0)
        few = run(inputs[0][:rows], *inputs[1:4], inputs[4][:rows], 1.0)
    assert torch.equal(few[0], ids[:rows]) and torch.equal(few[1], weights[:rows])


def test_temporaries_at_the_largest_published_shape(reference):
    shapes = [
        ((4096, 5120), torch.bfloat16),
        ((384, 5120), torch.bfloat16),
        ((384,), torch.float32),
        ((384,), torch.float32),
        ((4096,), torch.bool),
    ]
    inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
    sizes = temporary_bytes(lambda *x: reference(NAME)(*x, 1.0)[1], *inputs)
    assert sizes[0] == 4 * 4096 * 5120 and sum(sizes) <= 2**30


def test_inputs_and_precision_of_the_caller_survive(reference):
    with constants(reference(NAME), **SMALL) as run:
        assert_leaves_caller_alone(lambda *x: run(*x, 1.0)[1], *small_inputs(5))


def test_constants_agree_with_the_axes(definition, reference):
    axes, values = definition(NAME)["axes"], reference(NAME).__globals__
    for axis, size in {"H": 5120, "E": 384, "TOPK": 6}.items():
        assert values[axis] == axes[axis]["value"] == size


def test_constraints_hold(definition):
    assert constraints_hold(definition(NAME), *real_case()[0], 1.5)


@pytest.mark.parametrize("name, label, old, new", MUTATIONS, ids=[" ".join(row[:2]) for row in MUTATIONS])
def test_mutations_are_caught(definition, name, label, old, new):
    run = mutated_reference(definition(name), old, new)
    with pytest.raises(AssertionError):
        check_oracle(name, run)
