"""Sparse MLA prefill references against float64 attention over the gathered keys of each row."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.attention_oracles import looped_attention, sdpa_attention
from helpers.definition_checks import constants, constraints_hold
from helpers.mutations.sparse_mla import MUTATIONS, NAMES
from helpers.reference_checks import (
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    normal,
    temporary_bytes,
    without_constants,
)

SLOTS = {name: int(name.rsplit("_s")[-1]) for name in NAMES}
SCALE = 512**-0.5
INF = float("inf")
SMALL = dict(H=3, D=8, K_SLOTS=6)


def make_inputs(indices: list[list[int]], lengths: list[int], T: int, sink, D: int, seed: int = 0):
    """Inputs for rows of slots; sink holds one value a head."""
    S, H = len(lengths), len(sink)
    return (
        normal(S, H, D, seed=seed),
        normal(T, 1, D, seed=seed + 1),
        torch.tensor(indices, dtype=torch.int32)[:, None],
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor(sink, dtype=torch.float32),
    )


def gathered(attention, q, kv, indices, topk_length, attn_sink, sm_scale) -> torch.Tensor:
    """`attention` of each row over the keys that its valid slots name."""
    rows = []
    for row, slots, length in zip(q, indices[:, 0].tolist(), topk_length.tolist()):
        named = [slot for slot in slots[:length] if 0 <= slot < kv.shape[0]]
        rows.append(attention(row, kv[named, 0], attn_sink, sm_scale))
    return torch.stack(rows) if rows else torch.zeros(q.shape, dtype=torch.float64)


@cache
def real_case(name: str):
    """(inputs, exact result) with the definition's own H, D and K_slots: full, short and one-slot rows."""
    slots, T = SLOTS[name], 900
    order = torch.randperm(T, generator=torch.Generator().manual_seed(7)).tolist()
    lengths = [slots, slots - 1, slots // 2 + 3, 5, 1, 2]
    indices = [order[row : row + slots] for row in range(len(lengths))]
    indices[1][0] = indices[1][40] = indices[3][1] = indices[5][0] = -1
    indices[2][3:5] = [0, T - 1]
    inputs = make_inputs(indices, lengths, T, torch.linspace(-2, 3, 64).tolist(), D=512)
    return inputs, gathered(sdpa_attention, *inputs, SCALE)


SMALL_ROWS = [
    [0, 1, 2, 3, 4, 5],
    [4, -1, 4, 0, -1, 3],
    [-1, -1, -1, 2, 5, 1],
    [5, 2, 9, 1, 0, 3],
    [-1, -1, -1, -1, -1, -1],
    [3, 0, 0, 0, 0, 0],
    [5, 4, 3, 2, 1, 0],
    [2, 3, 4, 0, 1, 5],
]
SMALL_LENGTHS = [6, 6, 6, 4, 5, 1, 0, 3]


def check_oracle(name: str, run) -> None:
    small = make_inputs(SMALL_ROWS, SMALL_LENGTHS, T=6, sink=[-INF, 0.5, 2.0], D=8)
    with constants(run, **SMALL, ROWS=3):
        assert_rounded_once(run(*small, 0.35), gathered(looped_attention, *small, 0.35))
    inputs, exact = real_case(name)
    assert_rounded_once(run(*inputs, SCALE), exact)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_the_exact_attention_rounded_once(name, reference):
    check_oracle(name, reference(name))


def test_oracles_agree():
    q, keys = normal(3, 8, seed=1), normal(5, 8, seed=2)
    sink = torch.tensor([-INF, -1.0, 4.0])
    torch.testing.assert_close(looped_attention(q, keys, sink, 0.3), sdpa_attention(q, keys, sink, 0.3))


slot = st.integers(-1, 6)  # 6 is one past the workspace


@settings(deadline=None, max_examples=30)
@given(
    indices=st.lists(st.lists(slot, min_size=6, max_size=6), min_size=1, max_size=4),
    data=st.data(),
    sink=st.lists(st.sampled_from([-INF, -300.0, -2.0, 0.0, 3.0, 80.0, 3e4, INF]), min_size=3, max_size=3),
)
def test_any_slots_lengths_and_sinks(reference, indices, data, sink):
    lengths = [data.draw(st.integers(0, 6)) for _ in indices]
    inputs = make_inputs(indices, lengths, T=6, sink=sink, D=8)
    with constants(reference(NAMES[0]), **SMALL, ROWS=data.draw(st.integers(1, 5))) as run:
        output, exact = run(*inputs, 0.35), gathered(looped_attention, *inputs, 0.35)
    torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=1e-5)


@settings(deadline=None, max_examples=15)
@given(order=st.permutations(range(6)), columns=st.permutations(range(6)))
def test_order_of_slots_and_of_workspace_rows_is_irrelevant(reference, order, columns):
    q, kv, indices, _, sink = make_inputs(SMALL_ROWS, [6] * 8, T=6, sink=[-INF, 0.5, 2.0], D=8)
    place = torch.tensor(order)
    moved_kv, moved = torch.empty_like(kv), indices.clone()
    moved_kv[place] = kv  # row i goes to order[i]
    known = (indices >= 0) & (indices < 6)
    moved[known] = place[indices[known].long()].int()
    full = torch.full((8,), 6, dtype=torch.int32)
    with constants(reference(NAMES[0]), **SMALL) as run:
        output = run(q, kv, indices, full, sink, 0.35)
        assert torch.equal(run(q, moved_kv, moved, full, sink, 0.35), output)
        shuffled = run(q, kv, indices[:, :, list(columns)], full, sink, 0.35)
    torch.testing.assert_close(shuffled, output, rtol=2**-7, atol=1e-5)


def test_only_named_rows_are_read(reference):
    q, kv, indices, lengths, sink = make_inputs([[1, -1, 2, 0, 0, 0]], [3], T=4, sink=[0.0] * 3, D=8)
    poisoned = kv.clone()
    poisoned[[0, 3]] = torch.nan
    with constants(reference(NAMES[0]), **SMALL) as run:
        output = run(q, kv, indices, lengths, sink, 0.35)
        assert torch.equal(run(q, poisoned, indices, lengths, sink, 0.35), output)


def test_a_repeated_row_counts_twice(reference):
    inputs = make_inputs([[0, 0, 1, -1, -1, -1]], [3], T=2, sink=[-INF] * 3, D=8)
    kv, q = torch.zeros(2, 1, 8).bfloat16(), torch.zeros(1, 3, 8).bfloat16()
    kv[0] = 3.0
    with constants(reference(NAMES[0]), **SMALL) as run:
        assert (run(q, kv, *inputs[2:], 0.35) == 2.0).all()


@pytest.mark.parametrize("shape", ["no query row", "empty workspace"])
def test_empty_axes(shape, reference):
    S, T = (0, 4) if shape == "no query row" else (2, 0)
    q, kv = torch.ones(S, 64, 512).bfloat16(), torch.ones(T, 1, 512).bfloat16()
    indices, lengths = torch.full((S, 1, 128), -1, dtype=torch.int32), torch.zeros(S, dtype=torch.int32)
    output = reference(NAMES[0])(q, kv, indices, lengths, torch.full((64,), -INF), SCALE)
    assert output.shape == (S, 64, 512) and (output == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_temporaries_grow_neither_with_rows_nor_with_the_workspace(name, reference):
    """The keys of a step of rows are the largest: 4 * 64 * 640 * 512 B = 80 MiB at the published size."""
    keys = 4 * 8 * SLOTS[name] * 16
    for S, T in ((8, 100), (40, 100), (40, 5000)):
        indices = torch.arange(S * SLOTS[name]).view(S, -1).remainder(T).tolist()
        inputs = make_inputs(indices, [SLOTS[name]] * S, T, sink=[0.0, 1.0], D=16)
        with constants(reference(name), H=2, D=16, ROWS=8) as run:
            assert temporary_bytes(lambda *x: run(*x, SCALE), *inputs)[0] == keys


def test_inputs_and_precision_of_the_caller_survive(reference):
    inputs = make_inputs(SMALL_ROWS, SMALL_LENGTHS, T=6, sink=[-INF, 0.5, 2.0], D=8)
    with constants(reference(NAMES[0]), **SMALL) as run:
        assert_leaves_caller_alone(lambda *x: run(*x, 0.35), *inputs)


@pytest.mark.parametrize("name", NAMES)
def test_constants_agree_with_the_axes(name, definition, reference):
    axes, values = definition(name)["axes"], reference(name).__globals__
    assert (values["H"], values["D"]) == (axes["H"]["value"], axes["D"]["value"]) == (64, 512)
    assert values["K_SLOTS"] == axes["K_slots"]["value"] == SLOTS[name]


def test_references_differ_only_in_constants(definition):
    assert len({without_constants(definition(name)["reference"], "K_SLOTS") for name in NAMES}) == 1


@pytest.mark.parametrize(
    "change, legal",
    [
        ({}, True),
        ({"topk_length": 129}, False),
        ({"topk_length": -1}, False),
        ({"topk_length": 0}, True),
        ({"indices": 900}, False),
        ({"indices": -2}, False),
        ({"indices": -1}, True),
    ],
)
def test_constraints(change, legal, definition):
    record, (inputs, _) = definition(NAMES[0]), real_case(NAMES[0])
    named = dict(zip(record["inputs"], (x.clone() for x in inputs)))
    for name, value in change.items():
        named[name].view(-1)[-1] = value
    assert constraints_hold(record, *named.values(), SCALE) == legal


@pytest.mark.parametrize("name, label, old, new", MUTATIONS, ids=[" ".join(row[:2]) for row in MUTATIONS])
def test_mutations_are_caught(definition, name, label, old, new):
    run = mutated_reference(definition(name), old, new)
    with pytest.raises(AssertionError):
        check_oracle(name, run)
