"""Dense attention references against float64 attention and PyTorch's SDPA."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.mutations.dense_attention import AUDIO, MUTATIONS, VIDEO
from helpers.reference_checks import (
    GIB,
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    normal,
    temporary_bytes,
    without_constants,
)

H = 32
DIM = {VIDEO: 128, AUDIO: 64}
NAMES = [VIDEO, AUDIO]

lengths = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))  # B, Nq, Nk


def qkv(name: str, B: int, Nq: int, Nk: int, seed: int = 0) -> list[torch.Tensor]:
    return [normal(B, rows, H, DIM[name], seed=3 * seed + i) for i, rows in enumerate((Nq, Nk, Nk))]


def exact_attention(q, k, v) -> torch.Tensor:
    """Float64, one sample and head at a time."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    o = np.empty_like(q)
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        scores = q[b, :, h] @ k[b, :, h].T / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        o[b, :, h] = weights @ v[b, :, h] / weights.sum(axis=1, keepdims=True)
    return torch.from_numpy(o)


@cache
def case(name: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(inputs, exact output): two samples, more keys than queries."""
    inputs = qkv(name, 2, 11, 17)
    return inputs, exact_attention(*inputs)


def check_oracle(name: str, run) -> None:
    inputs, exact = case(name)
    assert_rounded_once(run(*inputs), exact)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_exact_attention_rounded_once(name, reference):
    check_oracle(name, reference(name))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(sizes=lengths, seed=st.integers(0, 99))
def test_any_lengths_equal_float64_sdpa(reference, name, sizes, seed):
    inputs = qkv(name, *sizes, seed)
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(*(x.double().transpose(1, 2) for x in inputs))
    assert_rounded_once(reference(name)(*inputs), o.transpose(1, 2))


@pytest.mark.parametrize("name", NAMES)
def test_bf16_sdpa_is_within_the_task_tolerance(name, reference):
    """Math SDPA on BF16 keeps float32 inside: the form in which engine outputs are captured."""
    inputs = qkv(name, 1, 51, 126)
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs))
    torch.testing.assert_close(o.transpose(1, 2), reference(name)(*inputs), rtol=0.016, atol=0.005)


@settings(deadline=None, max_examples=15)
@given(sizes=lengths, order=st.randoms(use_true_random=False))
def test_order_of_keys_is_irrelevant(reference, sizes, order):
    q, k, v = qkv(AUDIO, *sizes)
    permuted = list(range(sizes[2]))
    order.shuffle(permuted)
    run = reference(AUDIO)
    torch.testing.assert_close(run(q, k[:, permuted], v[:, permuted]), run(q, k, v), rtol=2**-7, atol=1e-6)


def test_one_key_returns_its_value(reference):
    q, k, v = qkv(VIDEO, 2, 5, 1)
    assert torch.equal(reference(VIDEO)(q, k, v), v.expand_as(q))


def test_equal_keys_return_the_mean_value(reference):
    q, k, v = qkv(VIDEO, 1, 3, 8)
    k = k[:, :1].expand_as(k)
    assert_rounded_once(reference(VIDEO)(q, k, v), v.double().mean(dim=1, keepdim=True).expand(q.shape))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scores", [1, 17 * 4])
def test_query_steps_change_nothing(name, scores, reference):
    run = reference(name)
    run.__globals__["SCORES"] = scores
    check_oracle(name, run)


def test_large_scores_do_not_overflow(reference):
    q, k, v = qkv(VIDEO, 1, 6, 9)
    q = q * 64  # scores of several hundred, far beyond exp's float32 range
    assert_rounded_once(reference(VIDEO)(q, k, v), exact_attention(q, k, v), noise=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("Nq, Nk", [(2560, 2560), (40960, 40960), (126, 2560)])
def test_temporaries_at_large_shapes(name, Nq, Nk, reference):
    """B=4, Nq=Nk=2560 is the largest published call; the bound holds for sixteen times longer videos too."""
    shapes = [(4 if Nk == 2560 else 1, rows, H, DIM[name]) for rows in (Nq, Nk, Nk)]
    inputs = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    assert temporary_bytes(reference(name), *inputs)[0] <= 4 * 2**24 <= GIB


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_precision_of_the_caller_survive(name, reference):
    assert_leaves_caller_alone(reference(name), *case(name)[0])


def test_references_differ_only_in_constants(definition):
    assert len({without_constants(definition(name)["reference"], "D") for name in NAMES}) == 1
    for name, dim in DIM.items():
        assert definition(name)["axes"]["D"]["value"] == dim
        assert f"\nH = {H}\nD = {dim}\n" in definition(name)["reference"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation[0]}: {mutation[1]}")
def test_mutations_are_caught(definition, mutation):
    name, _, old, new = mutation
    with pytest.raises(AssertionError):
        check_oracle(name, mutated_reference(definition(name), old, new))
