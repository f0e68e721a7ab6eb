"""Sparse index selection against exhaustive scoring in exactly rounded sums, and its edge cases."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mutations.sparse_index import MUTATIONS, NAME
from helpers.qwen_tools import broken_rules, caught, constants, int32, largest_temporary, noise, page_table, shuffled
from helpers.reference_checks import mutated_reference

BLOCK = 4


def oracle(q_index, k_index_cache, pages, seq_lens, query_seq, query_pos, topk):
    """Every complete block scored one by one, then sorted by (score downwards, id upwards)."""
    queries, keys, size = q_index.tolist(), k_index_cache.tolist(), k_index_cache.shape[1]
    result = []
    for query, sequence, position in zip(queries, query_seq.tolist(), query_pos.tolist()):
        complete = [n for n in range(seq_lens[sequence] // BLOCK) if BLOCK * n + BLOCK - 1 <= position]
        scores = {n: score(query, keys[pages[sequence, n // size]][n % size]) for n in complete}
        chosen = sorted(complete, key=lambda n: (-scores[n], n))[:topk]
        result.append(sorted(chosen) + [-1] * (topk - len(chosen)))
    return torch.tensor(result, dtype=torch.int32).reshape(-1, topk)


def score(query, key):
    """float32 score; math.fsum rounds each sum once, so no order of summation is assumed."""
    heads = [max(0.0, math.fsum(x * y for x, y in zip(head, key))) for head in query]
    return np.float32(math.fsum(heads) / math.sqrt(len(key)))


def make_inputs(rows, lengths, page_size, seed, heads=4, dim=128, values=None):
    """Inputs for rows [(sequence, position)]; spare pages and the tail of each last page hold NaN.

    values: None for normal queries and keys, else a bound of small integers, which tie often.
    """
    blocks = [length // BLOCK for length in lengths]
    table, num_pages = page_table(blocks, page_size, seed)
    q = noise(seed, len(rows), heads, dim)
    entries = noise(seed + 1, sum(blocks), dim)
    if values is not None:
        q, entries = (x.mul(values).round().clamp(-values, values) for x in (q, entries))
    k_cache = torch.full((num_pages, page_size, dim), math.nan)
    owned = [(s, n) for s, count in enumerate(blocks) for n in range(count)]
    for (s, n), entry in zip(owned, entries):
        k_cache[table[s, n // page_size], n % page_size] = entry
    return (
        q.bfloat16(),
        k_cache.bfloat16(),
        table,
        int32(*lengths),
        int32(*(s for s, _ in rows)),
        int32(*(p for _, p in rows)),
    )


def check_case(run, inputs, expected, topk):
    with constants(run, TOPK=topk):
        result = run(*inputs)
    assert result.dtype == torch.int32 and result.shape == (len(inputs[4]), topk)
    assert torch.equal(result, expected)


def published_rows():
    """Rows with under, exactly and over 512 complete blocks, of three interleaved sequences."""
    ends = [2619, 39, 2055]
    return [(s, end - back) for back in (0, 1, 3, 4) for s, end in enumerate(ends)], [end + 1 for end in ends]


def near_tie():
    """Two blocks whose scores differ by 2**-30 relative, the later one higher: equal in float32."""
    q, cache = torch.zeros(1, 4, 128), torch.zeros(1, 2, 128)
    q[:, 0, :2] = torch.tensor([1.0, 2.0**-15])
    cache[0, :, 0] = 1.0
    cache[0, 1, 1] = 2.0**-15
    return q.bfloat16(), cache.bfloat16(), int32(0)[None], int32(8), int32(0), int32(7)


@cache
def cases():
    """(inputs, expected ids, topk) of calls that together show every rule."""
    rows, lengths = published_rows()
    calls = [(make_inputs(rows, lengths, page_size=16, seed=1), 512), (near_tie(), 1)]
    lengths = [61, 3, 40]
    rows = [(s, p) for s, length in enumerate(lengths) for p in range(length)]
    for page_size, values in ((1, None), (3, 1), (16, 2)):
        calls.append((make_inputs(rows, lengths, page_size, seed=page_size, dim=8, values=values), 6))
    return [(inputs, oracle(*inputs, topk), topk) for inputs, topk in calls]


def check_oracle(name, run):
    """Raise AssertionError unless `run` agrees with the oracle on the family's cases."""
    assert name == NAME
    for case in cases():
        check_case(run, *case)


def test_reference_against_oracle(reference):
    check_oracle(NAME, reference(NAME))


@pytest.mark.parametrize("label,old,new", [m[1:] for m in MUTATIONS], ids=[m[1] for m in MUTATIONS])
def test_mutations_are_caught(definition, label, old, new):
    assert caught(check_oracle, NAME, mutated_reference(definition(NAME), old, new)), label


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    page_size=st.integers(1, 9),
    values=st.sampled_from([None, 1, 3]),
    topk=st.integers(1, 9),
    data=st.data(),
)
def test_any_layout(reference, seed, lengths, page_size, values, topk, data):
    sequences = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    rows = [(s, data.draw(st.integers(0, lengths[s] - 1))) for s in sequences]
    inputs = make_inputs(rows, lengths, page_size, seed, heads=2, dim=4, values=values)
    check_case(reference(NAME), inputs, oracle(*inputs, topk), topk)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**16))
def test_page_order_and_row_order_do_not_matter(reference, seed):
    run, lengths = reference(NAME), [90, 57]
    rows = [(i % 2, 50 + i % 7) for i in range(12)]
    q, cache, table, seq_lens, query_seq, query_pos = make_inputs(rows, lengths, 4, seed, dim=16, values=1)
    moved, order = shuffled(len(cache), seed + 1), shuffled(len(rows), seed + 2)
    new_cache = torch.empty_like(cache)
    new_cache[moved] = cache
    new_table = torch.where(table >= 0, moved[table.long()].int(), -1)
    with constants(run, TOPK=5):
        expected = run(q, cache, table, seq_lens, query_seq, query_pos)
        result = run(q[order], new_cache, new_table, seq_lens, query_seq[order], query_pos[order])
    assert torch.equal(result, expected[order])


def one_hot_inputs(weights, position):
    """One row at `position` of a sequence whose block n scores weights[n] / sqrt(dim)."""
    q, cache = torch.zeros(1, 4, 8), torch.zeros(len(weights), 1, 8)
    q[0, 2, 3] = 1.0
    cache[:, 0, 3] = torch.tensor(weights)
    table = torch.arange(len(weights), dtype=torch.int32)[None]
    return q.bfloat16(), cache.bfloat16(), table, int32(4 * len(weights)), int32(0), int32(position)


@pytest.mark.parametrize("position,expected", [(15, [0, 1]), (18, [0, 1]), (19, [0, 4]), (20, [0, 4])])
def test_own_block_is_a_candidate_only_when_complete_and_can_lose(reference, position, expected):
    """At 15 the row completes block 3, which scores less than 0 and 1: it does not attend to itself."""
    run = reference(NAME)
    with constants(run, TOPK=2):
        assert run(*one_hot_inputs([3.0, 2.0, 1.0, -9.0, 5.0, 9.0], position)).tolist() == [expected]


def test_ties_at_the_threshold_go_to_the_lower_ids(reference):
    """600 visible blocks: 500 above zero, 100 at exactly zero of which the 12 lowest ids are taken."""
    zero = set(range(5, 605, 6))
    weights = [0.0 if n in zero else 1.0 + n % 3 for n in range(600)]
    result = reference(NAME)(*one_hot_inputs(weights, 2399))[0].tolist()
    assert result == sorted((set(range(600)) - zero) | set(sorted(zero)[:12]))


@pytest.mark.parametrize("blocks", [0, 1, 511, 512])
def test_no_score_is_needed_up_to_512_blocks(reference, blocks):
    weights = [math.nan] * 513
    result = reference(NAME)(*one_hot_inputs(weights, 4 * blocks + 2))[0]
    assert result.tolist() == list(range(blocks)) + [-1] * (512 - blocks)


def test_constraints(definition):
    rows, lengths = published_rows()
    good = make_inputs(rows, lengths, page_size=16, seed=1)
    assert broken_rules(definition(NAME), good) == []
    for which, index, value, rule in [
        (2, (0, 3), -1, "seq_lens[:, None]"),
        (2, (0, 3), 99, "< num_pages"),
        (3, 0, 2619, "< seq_lens[query_seq]"),
        (3, 0, 99_999, "<= max_pages"),
        (4, 0, 3, "< num_seqs"),
        (5, 2, -1, "query_pos >= 0"),
    ]:
        inputs = [x.clone() for x in good]
        inputs[which][index] = value
        assert any(rule in broken for broken in broken_rules(definition(NAME), inputs)), rule


def test_no_rows(reference):
    q, cache, table, seq_lens, *_ = one_hot_inputs([1.0], 0)
    empty = torch.empty(0, dtype=torch.int32)
    assert reference(NAME)(q[:0], cache, table, seq_lens, empty, empty).shape == (0, 512)


def test_largest_temporary(reference):
    """A sixteenth of the 62,272 blocks of a 249,088-token context: a sixteenth of 1 GiB must suffice."""
    blocks = 249_088 // 4 // 16
    rows = [(0, 4 * blocks - 1 - i % 16) for i in range(300)]
    q, _, _, seq_lens, query_seq, query_pos = make_inputs(rows, [4 * blocks], 16, seed=3, dim=1)
    pages = -(-blocks // 16)
    cache, table = torch.zeros(pages, 16, 128), torch.arange(pages, dtype=torch.int32)[None]
    inputs = (q.expand(-1, -1, 128), cache.bfloat16(), table, seq_lens, query_seq, query_pos)
    run = reference(NAME)
    largest = largest_temporary(run, inputs)
    assert largest <= run.__globals__["ROWS"] * (blocks + 16) * 8 <= 2**30 // 16


def test_against_the_transformers_indexer(reference):
    """Qwen4Exp's own indexer with projection, norms and rotation made identities; needs transformers."""
    modeling = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    from types import SimpleNamespace

    tokens, topk = 150, 6
    config = SimpleNamespace(
        hidden_size=8,
        indexer_n_heads=4,
        indexer_kv_heads=1,
        indexer_head_dim=128,
        indexer_budget=topk * BLOCK,
        indexer_compress_ratio=BLOCK,
        rms_norm_eps=1e-6,
    )
    indexer = modeling.Qwen4ExpTextQSAIndexer(config, layer_idx=0)
    indexer.index_qk_proj = indexer.q_layernorm = indexer.k_layernorm = torch.nn.Identity()
    rows = [(0, p) for p in range(tokens)]
    inputs = make_inputs(rows, [tokens], 16, seed=9)
    keys = inputs[1][inputs[2][0, :-1].long()].flatten(0, 1)[: tokens // BLOCK]
    raw = torch.cat([keys.repeat_interleave(BLOCK, 0), keys.new_zeros(tokens % BLOCK, 128)])
    hidden = torch.cat([inputs[0].flatten(1), raw], dim=1)[None]
    rotation = torch.ones(1, tokens, 64), torch.zeros(1, tokens, 64)
    causal = torch.ones(tokens, tokens).tril().bool()[None, None]
    seen = indexer(hidden, rotation, causal, None)[0, 0]
    run = reference(NAME)
    with constants(run, TOPK=topk):
        ids = run(*inputs)
    for position, row in enumerate(ids.tolist()):
        own = {j for n in row if n >= 0 for j in range(BLOCK * n, BLOCK * n + BLOCK)}
        tail = set(range((position + 1) // BLOCK * BLOCK, position + 1))
        assert own | tail == set(seen[position].nonzero().flatten().tolist())
