"""Block-causal attention references against float64 per-segment attention, SDPA and flex_attention."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from helpers.mutations.block_causal_attention import CACHED, EMPTY, MUTATIONS
from helpers.reference_checks import (
    GIB,
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    normal,
    temporary_bytes,
)
from inference_kernels.core.constraints import check_constraint
from inference_kernels.core.errors import ConstraintError

H, D = 32, 128
TEXT, IMAGE = False, True
# Text, an image, one text row, an image beside another, the target: (rows, is an image block).
SEGMENTS = [(5, TEXT), (9, IMAGE), (1, TEXT), (4, IMAGE), (6, IMAGE), (12, IMAGE)]

segment_lists = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=5).map(
    lambda prefix: [(1, TEXT), *prefix, (3, IMAGE)]
)


def key_ends(segments) -> torch.Tensor:
    """kv_end of a sequence of segments."""
    ends, start = [], 0
    for rows, is_image in segments:
        ends += [start + rows] * rows if is_image else range(start + 1, start + rows + 1)
        start += rows
    return torch.tensor(ends, dtype=torch.int32)


def qkv(rows: int, seed: int = 0) -> list[torch.Tensor]:
    return [normal(rows, H, D, seed=3 * seed + i) for i in range(3)]


def exact_rows(q, k, v, visible_keys) -> torch.Tensor:
    """Float64 attention, one query row at a time; visible_keys(i) is how many leading keys row i sees."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    rows = []
    for i in range(q.shape[0]):
        scores = np.einsum("hd,jhd->hj", q[i], k[: visible_keys(i)]) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        rows.append(np.einsum("hj,jhd->hd", weights, v[: visible_keys(i)]))
    return torch.from_numpy(np.stack(rows))


def per_segment_sdpa(q, k, v, segments) -> torch.Tensor:
    """As a model computes it: one float64 SDPA call a segment, causal for text, full for an image block."""
    outputs, start = [], 0
    for rows, is_image in segments:
        end = start + rows
        mask = torch.ones(rows, end, dtype=torch.bool)
        if not is_image:
            mask = mask.tril(diagonal=start)
        heads_first = [x.double().transpose(0, 1) for x in (q[start:end], k[:end], v[:end])]
        outputs.append(torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=mask))
        start = end
    return torch.cat(outputs, dim=1).transpose(0, 1)


@cache
def case(name: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(inputs, exact output). The cached case is the target of the empty one, cut off its prefix."""
    kv_end = key_ends(SEGMENTS)
    q, k, v = qkv(len(kv_end))
    exact = exact_rows(q, k, v, lambda i: int(kv_end[i]))
    if name == EMPTY:
        return [q, k, v, kv_end], exact
    P = len(kv_end) - SEGMENTS[-1][0]
    return [q[P:], k[:P], v[:P], k[P:], v[P:]], exact[P:]


def check_oracle(name: str, run) -> None:
    inputs, exact = case(name)
    assert_rounded_once(run(*inputs), exact)


@pytest.mark.parametrize("name", [EMPTY, CACHED])
def test_reference_is_exact_attention_rounded_once(name, reference):
    check_oracle(name, reference(name))


@settings(deadline=None, max_examples=20)
@given(segments=segment_lists, seed=st.integers(0, 99))
def test_any_segments_equal_sdpa_a_segment(reference, segments, seed):
    kv_end = key_ends(segments)
    q, k, v = qkv(len(kv_end), seed)
    assert_rounded_once(reference(EMPTY)(q, k, v, kv_end), per_segment_sdpa(q, k, v, segments))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_agrees(reference):
    (q, k, v, kv_end), _ = case(EMPTY)
    visible = torch.arange(len(kv_end)) < kv_end[:, None]

    def hide(score, _b, _h, i, j):
        return torch.where(visible[i, j], score, -torch.inf)

    o = flex_attention(*(x.float().transpose(0, 1)[None] for x in (q, k, v)), score_mod=hide)
    assert_rounded_once(reference(EMPTY)(q, k, v, kv_end), o[0].transpose(0, 1).double())


@settings(deadline=None, max_examples=15)
@given(T=st.integers(1, 7), P=st.integers(1, 7), seed=st.integers(0, 99))
def test_cached_prefix_continues_the_empty_one(reference, T, P, seed):
    q, k, v = qkv(P + T, seed)
    whole = reference(EMPTY)(q, k, v, key_ends([(P, TEXT), (T, IMAGE)]))
    later = reference(CACHED)(q[P:], k[:P], v[:P], k[P:], v[P:])
    assert_rounded_once(later, exact_rows(q[P:], k, v, lambda i: P + T))
    torch.testing.assert_close(later, whole[P:], rtol=2**-7, atol=1e-6)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), segments=segment_lists)
def test_hidden_rows_have_no_influence(reference, data, segments):
    kv_end = key_ends(segments)
    q, k, v = qkv(len(kv_end))
    row = data.draw(st.integers(0, len(kv_end) - 1))
    end = int(kv_end[row])
    before = reference(EMPTY)(q, k, v, kv_end)[row]
    k[end:], v[end:] = 100.0, 1e30
    assert torch.equal(before, reference(EMPTY)(q, k, v, kv_end)[row])


def test_a_row_that_sees_one_key_returns_its_value(reference):
    (q, k, v, kv_end), _ = case(EMPTY)
    assert torch.equal(reference(EMPTY)(q, k, v, kv_end)[0], v[0])


@pytest.mark.parametrize("name", [EMPTY, CACHED])
@pytest.mark.parametrize("scores", [1, 100])
def test_query_steps_change_nothing(name, scores, reference):
    run = reference(name)
    run.__globals__["SCORES"] = scores
    check_oracle(name, run)


def test_large_scores_do_not_overflow(reference):
    kv_end = key_ends(SEGMENTS)
    q, k, v = qkv(len(kv_end))
    q = q * 64  # scores of several hundred, far beyond exp's float32 range
    exact = exact_rows(q, k, v, lambda i: int(kv_end[i]))
    assert_rounded_once(reference(EMPTY)(q, k, v, kv_end), exact, noise=1e-4)


@settings(deadline=None, max_examples=30)
@given(segments=segment_lists)
def test_every_segmentation_satisfies_the_constraints(definition, segments):
    kv_end = key_ends(segments)
    for constraint in definition(EMPTY)["constraints"]:
        check_constraint(constraint, {"S": len(kv_end), "kv_end": kv_end}, "test")


@pytest.mark.parametrize(
    "ends",
    [
        [1, 2, 2],
        [0, 3, 3],  # a row that does not see itself
        [1, 2, 4],
        [3, 3, 4],  # a key that does not exist
        [3, 2, 3],  # decreasing
        [2, 3, 3],  # blocks that overlap: row 0 ends inside the block of row 1
    ],
    ids=str,
)
def test_other_key_ends_are_refused(definition, ends):
    names = {"S": 3, "kv_end": torch.tensor(ends, dtype=torch.int32)}
    with pytest.raises(ConstraintError):
        for constraint in definition(EMPTY)["constraints"]:
            check_constraint(constraint, names, "test")


@pytest.mark.parametrize("name", [EMPTY, CACHED])
def test_temporaries_at_the_largest_published_shape(name, reference):
    """1536x1024 target (6144 rows), a 1024x1024 condition image (4096) and 256 text rows."""
    P, T = 4096 + 256, 6144
    rows = [P + T] * 3 if name == EMPTY else [T, P, P, T, T]
    inputs = [torch.empty(n, H, D, dtype=torch.bfloat16, device="meta") for n in rows]
    if name == EMPTY:
        inputs.append(torch.empty(P + T, dtype=torch.int32, device="meta"))
    largest = temporary_bytes(reference(name), *inputs)[0]
    assert 2**25 < largest <= 4 * 2**24 <= GIB


@pytest.mark.parametrize("name", [EMPTY, CACHED])
def test_inputs_and_precision_of_the_caller_survive(name, reference):
    assert_leaves_caller_alone(reference(name), *case(name)[0])


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation[0]}: {mutation[1]}")
def test_mutations_are_caught(definition, mutation):
    name, _, old, new = mutation
    with pytest.raises(AssertionError):
        check_oracle(name, mutated_reference(definition(name), old, new))
