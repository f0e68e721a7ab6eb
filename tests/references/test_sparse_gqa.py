"""Sparse grouped-query attention against float64 loops over every position, torch SDPA, edge cases."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mutations.sparse_gqa import MUTATIONS, NAME
from helpers.qwen_tools import broken_rules, caught, int32, largest_temporary, noise, page_table, shuffled
from helpers.reference_checks import assert_rounded_once, mutated_reference

BLOCK = 4
SCALE = 1 / 16


def oracle(q, k_cache, v_cache, block_ids, pages, seq_lens, query_seq, query_pos, sm_scale):
    """Each position of the context is tested for visibility on its own; softmax in float64, head by head."""
    q, k_cache, v_cache = (x.double().numpy() for x in (q, k_cache, v_cache))
    size, heads, kv_heads = k_cache.shape[1], q.shape[1], k_cache.shape[2]
    result = np.zeros(q.shape)
    for t, (sequence, position) in enumerate(zip(query_seq.tolist(), query_pos.tolist())):
        seen = visible(set(block_ids[t].tolist()), position)
        places = [(int(pages[sequence, j // size]), j % size) for j in seen]
        keys, values = (np.array([cache[place] for place in places]) for cache in (k_cache, v_cache))
        for head in range(heads if seen else 0):
            kv_head = head // (heads // kv_heads)
            scores = keys[:, kv_head] @ q[t, head] * sm_scale
            weights = np.exp(scores - scores.max())
            result[t, head] = (weights / weights.sum()) @ values[:, kv_head]
    return torch.from_numpy(result)


def visible(selected, position):
    """Positions up to `position` whose block is selected, or is not complete yet."""
    return [j for j in range(position + 1) if j // BLOCK in selected or j // BLOCK * BLOCK + BLOCK - 1 > position]


def select(rows, slots, seed, share):
    """About `share` of the complete blocks of each row, at most `slots`: [ids, ...] in increasing order."""
    counts = [(position + 1) // BLOCK for _, position in rows]
    return [
        sorted(shuffled(count, seed + t)[: min(slots, round(share * count))].tolist()) for t, count in enumerate(counts)
    ]


def make_inputs(rows, lengths, page_size, seed, selected, slots=512, heads=24, kv_heads=2, dim=256):
    """Inputs for rows [(sequence, position)] that select the blocks `selected` [[ids], ...].

    What no row reads is NaN in the caches, and pages without a read are -1 in the table.
    """
    table, num_pages = page_table(lengths, page_size, seed)
    read = {(s, j) for (s, position), ids in zip(rows, selected) for j in visible(set(ids), position)}
    k_cache, v_cache = torch.full((2, num_pages, page_size, kv_heads, dim), math.nan)
    for n, (s, j) in enumerate(sorted(read)):
        place = table[s, j // page_size], j % page_size
        k_cache[place], v_cache[place] = noise(seed + n, 2, kv_heads, dim)
    for s, column in (table >= 0).nonzero().tolist():
        if not any((s, j) in read for j in range(column * page_size, (column + 1) * page_size)):
            table[s, column] = -1
    block_ids = torch.tensor([ids + [-1] * (slots - len(ids)) for ids in selected], dtype=torch.int32)
    return (
        noise(seed, len(rows), heads, dim).bfloat16(),
        k_cache.bfloat16(),
        v_cache.bfloat16(),
        block_ids,
        table,
        int32(*lengths),
        int32(*(s for s, _ in rows)),
        int32(*(p for _, p in rows)),
        SCALE,
    )


def small_inputs(rows, lengths, page_size, seed, share=0.6):
    selected = select(rows, 16, seed, share)
    return make_inputs(rows, lengths, page_size, seed, selected, slots=16, heads=6, dim=16)


def published_inputs(rows, lengths, seed, share):
    return make_inputs(rows, lengths, 64, seed, select(rows, 512, seed, share))


@cache
def cases():
    """(inputs, exact output) of calls that together show every rule."""
    rows = [(s, p) for s, p in ((0, 2303), (1, 6), (0, 2200), (1, 7), (0, 1022), (2, 0))]
    calls = [
        published_inputs(rows, [2304, 9, 1], seed=1, share=0.95),
        make_inputs([(0, 30)], [31], 8, 2, [[2, 5]], slots=4, heads=2, dim=8),
    ]
    lengths = [23, 9]
    rows = [(s, p) for s, length in enumerate(lengths) for p in range(length)]
    calls += [small_inputs(rows, lengths, page_size, seed=page_size) for page_size in (4, 8)]
    return [(inputs, oracle(*inputs)) for inputs in calls]


def check_oracle(name, run):
    """Raise AssertionError unless `run` agrees with the oracle on the family's cases."""
    assert name == NAME
    for inputs, exact in cases():
        assert_rounded_once(run(*inputs), exact)


def test_reference_against_oracle(reference):
    check_oracle(NAME, reference(NAME))


@pytest.mark.parametrize("label,old,new", [m[1:] for m in MUTATIONS], ids=[m[1] for m in MUTATIONS])
def test_mutations_are_caught(definition, label, old, new):
    assert caught(check_oracle, NAME, mutated_reference(definition(NAME), old, new)), label


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    page_size=st.sampled_from([4, 8, 12, 64]),
    share=st.floats(0, 1),
    data=st.data(),
)
def test_any_layout(reference, seed, lengths, page_size, share, data):
    sequences = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
    rows = [(s, data.draw(st.integers(0, lengths[s] - 1))) for s in sequences]
    inputs = small_inputs(rows, lengths, page_size, seed, share)
    assert_rounded_once(reference(NAME)(*inputs), oracle(*inputs))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**16))
def test_slot_order_page_order_and_row_order_do_not_matter(reference, seed):
    """The -1 slots may stand anywhere; only the order of float32 sums changes."""
    rows, lengths = [(i % 2, 30 + i % 5) for i in range(8)], [40, 36]
    q, k_cache, v_cache, block_ids, table, seq_lens, query_seq, query_pos, scale = small_inputs(rows, lengths, 8, seed)
    pages, order = shuffled(len(k_cache), seed + 1), shuffled(len(rows), seed + 2)
    new_k, new_v = torch.empty_like(k_cache), torch.empty_like(v_cache)
    new_k[pages], new_v[pages] = k_cache, v_cache
    run, slots = reference(NAME), shuffled(block_ids.shape[1], seed + 3)
    expected = run(q, k_cache, v_cache, block_ids, table, seq_lens, query_seq, query_pos, scale)
    result = run(
        q[order],
        new_k,
        new_v,
        block_ids[order][:, slots],
        torch.where(table >= 0, pages[table.long()].int(), -1),
        seq_lens,
        query_seq[order],
        query_pos[order],
        scale,
    )
    torch.testing.assert_close(result, expected[order], rtol=2**-7, atol=1e-6)


def test_full_selection_is_dense_causal_attention(reference):
    """Every complete block and the tail are the whole past: torch's causal SDPA, up to 2051 tokens."""
    length = 35
    inputs = published_inputs([(0, p) for p in range(length)], [length], seed=5, share=1.0)
    q, k_cache, v_cache, _, table, *_ = inputs
    pages = table[0, :1].long()
    keys, values = (x[pages].flatten(0, 1)[:length].double().transpose(0, 1) for x in (k_cache, v_cache))
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(0, 1), keys, values, is_causal=True, scale=SCALE, enable_gqa=True
    )
    assert_rounded_once(reference(NAME)(*inputs), exact.transpose(0, 1))


def test_a_query_need_not_attend_to_itself(reference):
    """At position 7 both blocks are complete; with block 0 alone selected, tokens 4 to 7 are not read."""
    inputs = make_inputs([(0, 7)], [8], 8, 3, [[0]], slots=2, heads=6, dim=16)
    assert inputs[1][int(inputs[4][0, 0]), 4:].isnan().all()
    assert_rounded_once(reference(NAME)(*inputs), oracle(*inputs))


@pytest.mark.parametrize("position,tail", [(0, [0]), (2, [0, 1, 2]), (3, []), (4, [4]), (7, [])])
def test_tail_alone(reference, position, tail):
    """Without selected blocks the output is attention over the tail; an empty tail gives zeros."""
    q, k_cache, v_cache, block_ids, *rest = small_inputs([(0, position)], [8], 8, seed=4, share=0.0)
    result = reference(NAME)(q, k_cache, v_cache, block_ids, *rest)
    if not tail:
        assert result.count_nonzero() == 0
    elif len(tail) == 1:
        values = v_cache[int(rest[0][0, 0]), tail[0]]
        assert torch.equal(result[0], values.repeat_interleave(3, 0))
    assert visible(set(), position) == tail


def test_rows_do_not_influence_each_other(reference):
    """More rows than are attended at once, and each of them alone."""
    rows = [(i % 2, i % 40) for i in range(37)]
    inputs = small_inputs(rows, [40, 41], 8, seed=6)
    run = reference(NAME)
    together = run(*inputs)
    for t in (0, 31, 32, 36):
        alone = [x[t : t + 1] if i in (0, 3, 6, 7) else x for i, x in enumerate(inputs)]
        torch.testing.assert_close(run(*alone)[0], together[t], rtol=2**-7, atol=1e-6)


def test_no_rows(reference):
    inputs = small_inputs([(0, 5)], [8], 8, seed=3)
    empty = [x[:0] if i in (0, 3, 6, 7) else x for i, x in enumerate(inputs)]
    assert reference(NAME)(*empty).shape == (0, 6, 16)


def test_precision_of_the_caller_neither_matters_nor_changes(reference):
    inputs = published_inputs([(0, 200)], [201], seed=8, share=0.6)
    expected = reference(NAME)(*inputs)
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(reference(NAME)(*inputs), expected)
        with pytest.raises((IndexError, RuntimeError)):
            reference(NAME)(inputs[0][0], *inputs[1:])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_largest_temporary(reference):
    """70 rows of a 5,000-token context: 32 rows of 2051 float32 keys, whatever the rows and the context."""
    inputs = make_inputs([(0, 4999 - i) for i in range(70)], [5000], 64, 9, [list(range(512))] * 70)
    largest = largest_temporary(reference(NAME), inputs)
    assert largest <= 32 * 2051 * 256 * 4 <= 2**30


def test_constraints(definition):
    """Each rule holds for a good call and is broken by one wrong entry."""
    rows = [(0, 2202), (0, 2199), (1, 6), (1, 7), (1, 2)]
    good = published_inputs(rows, [2203, 8], seed=11, share=0.5)
    assert broken_rules(definition(NAME), good) == []
    last_page = int(good[7][0]) // 64
    for which, index, value, rule in [
        (3, (0, 0), -1, ">= 0) & (block_ids"),
        (3, (0, 9), 0, "> block_ids[:, :-1]"),
        (3, (2, 0), 1, "< (query_pos[:, None] + 1)"),
        (6, 1, 2, "< num_seqs"),
        (7, 3, 8, "< seq_lens[query_seq]"),
        (4, (1, 0), -1, "block_ids * block_size"),
        (4, (0, last_page), -1, "% block_size == 0)"),
        (4, (0, 0), 99, "< num_pages"),
        (5, 1, 9999, "<= max_pages"),
    ]:
        inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in good]
        inputs[which][index] = value
        assert any(rule in broken for broken in broken_rules(definition(NAME), inputs)), rule
