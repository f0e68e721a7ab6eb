"""Dense GEMM references against float64 products, the engine's own operator, and hand-made roundings."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mutations.gemm import MUTATIONS, NAMES
from helpers.reference_checks import (
    GIB,
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    normal,
    temporary_bytes,
    without_constants,
)

SMALL = "dense_gemm_bf16_nt_n4096_k64"
DIMENSIONS = {name: tuple(int(part[1:]) for part in name.split("_")[-2:]) for name in NAMES}


@cache
def case(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(A, B, exact product) with five rows and the definition's own N and K."""
    n, k = DIMENSIONS[name]
    A, B = normal(5, k, seed=1), normal(n, k, seed=2, scale=k**-0.5)
    return A, B, exact_product(A, B)


def exact_product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Float64, some columns at a time: products of BF16 values are exact and their sums nearly so."""
    rows = A.double().numpy()
    blocks = [np.einsum("mk,nk->mn", rows, block.double().numpy(), optimize=True) for block in B.split(1024)]
    return torch.from_numpy(np.concatenate(blocks, axis=1))


def check_oracle(name: str, run) -> None:
    A, B, exact = case(name)
    assert_rounded_once(run(A, B), exact)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_the_exact_product_rounded_once(name, reference):
    check_oracle(name, reference(name))


@pytest.mark.parametrize("name", NAMES)
def test_engine_operator_is_within_the_task_tolerance(name, reference):
    A, B, _ = case(name)
    engine = torch.nn.functional.linear(A, B)
    torch.testing.assert_close(engine, reference(name)(A, B), rtol=0.016, atol=0.005)


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 9), step=st.integers(1, 10), seed=st.integers(0, 99))
def test_row_steps_change_nothing(reference, rows, step, seed):
    run, A = reference(SMALL), normal(rows, 64, seed=seed)
    run.__globals__["ROWS"] = step
    B = normal(4096, 64, seed=seed + 100)
    assert_rounded_once(run(A, B), exact_product(A, B))


def test_one_row_equals_the_same_row_among_others(reference):
    A, B, _ = case(SMALL)
    run = reference(SMALL)
    torch.testing.assert_close(run(A[3:4], B)[0], run(A, B)[3], rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize(
    "terms, expected",
    [
        ([256, 1], 256),  # 257 lies half way between BF16 neighbours: to even
        ([256, 1, 1, 1], 260),  # a BF16 accumulator would stay at 256
        ([258, 1], 260),  # 259, half way again: to even, upwards
        ([-256, -1, -1, -1], -260),
    ],
)
def test_rounding_of_hand_made_sums(reference, terms, expected):
    A, B = torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(4096, 64, dtype=torch.bfloat16)
    A[0, : len(terms)], B[7] = torch.tensor(terms).bfloat16(), 1
    C = reference(SMALL)(A, B)
    assert C[0, 7] == expected and C.count_nonzero() == 1


@pytest.mark.parametrize("name", NAMES)
def test_temporaries_at_the_largest_published_shape(name, reference):
    n, k = DIMENSIONS[name]
    A = torch.empty(24576, k, dtype=torch.bfloat16, device="meta")
    B = torch.empty(n, k, dtype=torch.bfloat16, device="meta")
    largest = temporary_bytes(reference(name), A, B)[0]
    assert largest == max(4 * n * k, 4 * 1024 * max(n, k)) <= GIB


@pytest.mark.parametrize("name", NAMES[-2:])
def test_inputs_and_precision_of_the_caller_survive(name, reference):
    assert_leaves_caller_alone(reference(name), *case(name)[:2])


def test_references_differ_only_in_constants(definition):
    assert len({without_constants(definition(name)["reference"], "N|K") for name in NAMES}) == 1
    for name, (n, k) in DIMENSIONS.items():
        axes = definition(name)["axes"]
        assert (axes["N"]["value"], axes["K"]["value"]) == (n, k)
        assert f"\nN = {n}\nK = {k}\n" in definition(name)["reference"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation[0]}: {mutation[1]}")
def test_mutations_are_caught(definition, mutation):
    name, _, old, new = mutation
    with pytest.raises(AssertionError):
        check_oracle(name, mutated_reference(definition(name), old, new))
