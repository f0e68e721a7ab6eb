"""Grouped FP8 x FP4 GEMM references against element-by-element float64 sums over decoded bytes."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.byte_formats import E4M3, E4M3_NUMBERS, E8M0, FP4_PAIR, decoded
from helpers.definition_checks import constants, constraints_hold
from helpers.mutations.grouped_gemm import MUTATIONS, NAMES
from helpers.reference_checks import (
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    temporary_bytes,
    without_constants,
)

LARGE = NAMES[0]
DIMENSIONS = {name: tuple(int(part[1:]) for part in name.split("_")[5:7]) for name in NAMES}
SMALL = dict(E=5, N=7, K=96)


def choice(seed: int, allowed, *shape: int) -> torch.Tensor:
    """int8 carriers of bytes from `allowed`, the same on every call."""
    index = torch.randint(len(allowed), shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(allowed, dtype=torch.uint8)[index].view(torch.int8)


def make_inputs(ids: list[int], E: int, N: int, K: int, experts: int, seed: int = 0):
    """Inputs with finite codes. experts: distinct weights; with 1, all E experts share one."""
    assert experts in (1, E)
    M, scales = len(ids), range(122, 132)
    bank = choice(seed + 3, range(256), experts, N, K // 2), choice(seed + 4, scales, experts, N, K // 32)
    if experts == 1:
        bank = tuple(part.expand(E, -1, -1) for part in bank)  # no copy: the real bank has gigabytes
    return (
        choice(seed + 1, E4M3_NUMBERS, M, K),
        choice(seed + 2, scales, M, K // 32),
        *bank,
        torch.tensor(ids, dtype=torch.int32),
    )


def looped(a, a_scale, b, b_scale, expert_ids) -> torch.Tensor:
    """The sum of the contract, one product at a time."""
    M, N, K = a.shape[0], b.shape[1], a.shape[1]
    a, a_scale, b, b_scale = (x.view(torch.uint8).tolist() for x in (a, a_scale, b, b_scale))
    d = torch.zeros(M, N, dtype=torch.float64)
    for i, expert in enumerate(expert_ids.tolist()):
        for n in range(N):
            d[i, n] = sum(
                E4M3[a[i][k]]
                * E8M0[a_scale[i][k // 32]]
                * FP4_PAIR[b[expert][n][k // 2]][k % 2]
                * E8M0[b_scale[expert][n][k // 32]]
                for k in range(K)
            )
    return d


@lru_cache(maxsize=1)
def real_case(name: str):
    """(inputs, exact result) with the definition's own E, N and K; all experts share one weight."""
    N, K = DIMENSIONS[name]
    inputs = make_inputs([0, 0, 7, 383], 384, N, K, experts=1)
    a, a_scale, b, b_scale, _ = inputs
    x = decoded(E4M3, a) * decoded(E8M0, a_scale).repeat(32, axis=-1)
    exact = [
        x @ (decoded(FP4_PAIR, codes) * decoded(E8M0, scale).repeat(32, axis=-1)).T
        for codes, scale in zip(b[0].split(512), b_scale[0].split(512))
    ]
    return inputs, torch.from_numpy(np.concatenate(exact, axis=1))


def check_oracle(name: str, run) -> None:
    small = make_inputs([0, 0, 2, 2, 2, 2, 2, 3, 4], **SMALL, experts=5)
    with constants(run, **SMALL, ROWS=2):
        assert_rounded_once(run(*small), looped(*small))
    inputs, exact = real_case(name)
    assert_rounded_once(run(*inputs), exact)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_the_exact_sum_rounded_once(name, reference):
    check_oracle(name, reference(name))


@pytest.mark.parametrize("table, dtype", [(E4M3, torch.float8_e4m3fn), (E8M0, torch.float8_e8m0fnu)])
def test_oracle_decodes_every_byte_as_torch_does(table, dtype):
    bytes_ = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(
        bytes_.view(dtype).double(), torch.tensor(table, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
    )


def test_every_fp4_byte_keeps_its_two_signed_values(reference):
    every_byte = torch.arange(256, dtype=torch.uint8).view(torch.int8)[:, None]
    values = reference(LARGE).__globals__["_e2m1"](every_byte)
    expected = torch.tensor(FP4_PAIR)
    assert torch.equal(values, expected) and torch.equal(values.signbit(), expected.signbit())


@settings(deadline=None, max_examples=25)
@given(ids=st.lists(st.integers(0, 2), max_size=5), seed=st.integers(0, 999), step=st.integers(1, 3))
def test_any_bytes(reference, ids, seed, step):
    """All 256 FP8 codes, scale bytes 0 and 255 among them, experts without rows, one row, no row."""
    dims = dict(E=3, N=3, K=64)
    a, a_scale, b, b_scale, expert_ids = make_inputs(sorted(ids), **dims, experts=3, seed=seed)
    a = choice(seed + 5, range(256), *a.shape) if seed % 3 == 0 else a
    special = [0, 255, *range(100, 150)]
    a_scale, b_scale = choice(seed + 6, special, *a_scale.shape), choice(seed + 7, special, *b_scale.shape)
    inputs = (a, a_scale, b, b_scale, expert_ids)
    with constants(reference(LARGE), **dims, ROWS=step) as run:
        d, exact = run(*inputs), looped(*inputs)
    assert d.shape == (len(ids), 3) and torch.equal(d.isnan(), exact.isnan())
    torch.testing.assert_close(d.double(), exact, rtol=2**-8, atol=1e-30, equal_nan=True)


@settings(deadline=None, max_examples=15)
@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=6), order=st.permutations(range(5)))
def test_renumbered_experts_rearrange_the_rows(reference, ids, order):
    a, a_scale, b, b_scale, expert_ids = make_inputs(sorted(ids), **SMALL, experts=5)
    renumbered = torch.tensor(order, dtype=torch.int32)[expert_ids]  # expert e becomes order[e]
    rows, bank = renumbered.argsort(stable=True), torch.tensor(order).argsort()
    with constants(reference(LARGE), **SMALL) as run:
        d = run(a, a_scale, b, b_scale, expert_ids)
        other = run(a[rows], a_scale[rows], b[bank], b_scale[bank], renumbered[rows])
    assert torch.equal(other, d[rows])


def test_experts_without_rows_are_never_read(reference):
    a, a_scale, b, b_scale, expert_ids = make_inputs([1, 1, 3], **SMALL, experts=5)
    poisoned = b_scale.clone()
    poisoned[[0, 2, 4]] = -1  # byte 255, NaN
    with constants(reference(LARGE), **SMALL) as run:
        d = run(a, a_scale, b, b_scale, expert_ids)
        assert torch.equal(run(a, a_scale, b, poisoned, expert_ids), d)
        poisoned[3, 2, 1] = -1
        assert run(a, a_scale, b, poisoned, expert_ids).isnan().nonzero().tolist() == [[2, 2]]


def test_negative_zero_codes_count_as_zero(reference):
    a, a_scale, b, b_scale, expert_ids = make_inputs([0, 4], **SMALL, experts=5)
    b = choice(9, [0x00, 0x35, 0x50, 0x0B], *b.shape)
    negative = choice(9, [0x88, 0x35, 0x58, 0x8B], *b.shape)  # the same with code 8 for code 0
    with constants(reference(LARGE), **SMALL) as run:
        d = run(a, a_scale, b, b_scale, expert_ids)
        assert torch.equal(run(a, a_scale, negative, b_scale, expert_ids), d)


def test_no_rows(reference):
    inputs = make_inputs([], 384, 4608, 5120, experts=1)
    assert reference(LARGE)(*inputs).shape == (0, 4608)


def test_temporaries_grow_neither_with_the_bank_nor_with_the_rows(reference):
    """One weight, or one step of rows: at the published size 4 * 4608 * 5120 B or 4 * 4096 * 5120 B."""
    dims = dict(E=6, N=64, K=512)
    weight = 4 * dims["N"] * dims["K"]
    for M, rows in ((24, 8), (24 * 20, 8), (24 * 20, 100)):
        inputs = make_inputs(sorted(list(range(6)) * (M // 6)), **dims, experts=6)
        with constants(reference(LARGE), **dims, ROWS=rows) as run:
            assert temporary_bytes(run, *inputs)[0] == max(weight, 4 * min(rows, M // 6) * dims["K"])


def test_inputs_and_precision_of_the_caller_survive(reference):
    with constants(reference(LARGE), **SMALL) as run:
        assert_leaves_caller_alone(run, *make_inputs([0, 3], **SMALL, experts=5))


@pytest.mark.parametrize("name", NAMES)
def test_constants_agree_with_the_axes(name, definition, reference):
    axes, values = definition(name)["axes"], reference(name).__globals__
    assert {axis: values[axis] for axis in "ENK"} == {axis: axes[axis]["value"] for axis in "ENK"}


def test_references_differ_only_in_constants(definition):
    assert len({without_constants(definition(name)["reference"], "N|K") for name in NAMES}) == 1


def test_retired_definition_says_why(definition):
    assert definition(NAMES[2])["description"].startswith("Retired: ")


@pytest.mark.parametrize(
    "ids, legal", [([0, 3, 3, 383], True), ([5], True), ([3, 2], False), ([-1, 0], False), ([0, 384], False)]
)
def test_constraints(ids, legal, definition):
    inputs = make_inputs(ids, 384, 4608, 5120, experts=1)
    assert constraints_hold(definition(LARGE), *inputs) == legal


@pytest.mark.parametrize("name, label, old, new", MUTATIONS, ids=[" ".join(row[:2]) for row in MUTATIONS])
def test_mutations_are_caught(definition, name, label, old, new):
    run = mutated_reference(definition(name), old, new)
    with pytest.raises(AssertionError):
        check_oracle(name, run)
