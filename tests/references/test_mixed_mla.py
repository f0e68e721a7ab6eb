"""Mixed-format decode reference against float64 attention over keys decoded byte by byte from the pages."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.attention_oracles import looped_attention, sdpa_attention
from helpers.byte_formats import E4M3, E4M3_NUMBERS, E8M0, FP4_PAIR
from helpers.definition_checks import constants, constraints_hold
from helpers.mutations.mixed_mla import MUTATIONS, NAME
from helpers.reference_checks import (
    assert_leaves_caller_alone,
    assert_rounded_once,
    mutated_reference,
    normal,
    temporary_bytes,
)
from inference_kernels.core.definitions import const_axes

SCALE = 512**-0.5
INF = float("inf")
SMALL = dict(H=2, D=64, W=4, C=6)
FP4_SCALES = [*range(0x28, 0x48), 0xB3]  # E4M3 from 0.25 to 3.75; one negative
SPARSE_640 = "sparse_mla_prefill_bf16_h64_d512_s640"


def choice(seed: int, allowed, *shape: int) -> torch.Tensor:
    index = torch.randint(len(allowed), shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(allowed, dtype=torch.uint8)[index]


def make_pages(seed: int, pages: int, slots: int, payload, payload_bytes: int, scales, scale_bytes: int):
    """int8 pages, each with all its payload rows first and then all its scale rows."""
    rows = choice(seed, payload, pages, slots * payload_bytes)
    scale_rows = choice(seed + 1, scales, pages, slots * scale_bytes)
    content = torch.cat((rows, scale_rows), dim=1).view(torch.int8)
    return content.view(pages, slots, payload_bytes + scale_bytes)


def fp8_pages(pages: int, slots: int, D: int, seed: int = 0) -> torch.Tensor:
    return make_pages(seed, pages, slots, E4M3_NUMBERS, D, range(116, 122), D // 32)


def fp4_pages(pages: int, slots: int, D: int, seed: int = 0) -> torch.Tensor:
    return make_pages(seed + 10, pages, slots, range(256), D // 2, FP4_SCALES, D // 16)


def fp8_key(pages, slot: int, D: int) -> list[float]:
    """Values of a slot, each byte and each scale byte looked up at its place in the page."""
    page, offset = divmod(slot, pages.shape[1])
    content, scales = pages[page].flatten().view(torch.uint8).tolist(), pages.shape[1] * D
    return [E4M3[content[offset * D + d]] * E8M0[content[scales + offset * (D // 32) + d // 32]] for d in range(D)]


def fp4_key(pages, slot: int, D: int) -> list[float]:
    page, offset = divmod(slot, pages.shape[1])
    content, scales = pages[page].flatten().view(torch.uint8).tolist(), pages.shape[1] * (D // 2)
    return [
        FP4_PAIR[content[offset * (D // 2) + d // 2]][d % 2] * E4M3[content[scales + offset * (D // 16) + d // 16]]
        for d in range(D)
    ]


def keys_of(read, pages, slots: list[int], length: int, D: int) -> list[list[float]]:
    return [read(pages, slot, D) for slot in slots[:length] if slot != -1]


def exact(attention, q, kv8, kv4, indices8, indices4, length8, length4, attn_sink, sm_scale) -> torch.Tensor:
    """`attention` of each token over the keys of both caches."""
    D, rows = q.shape[2], []
    for b in range(q.shape[0]):
        keys = keys_of(fp8_key, kv8, indices8[b].tolist(), int(length8[b]), D)
        keys += keys_of(fp4_key, kv4, indices4[b].tolist(), int(length4[b]), D)
        rows.append(attention(q[b], torch.tensor(keys, dtype=torch.float64).view(-1, D), attn_sink, sm_scale))
    return torch.stack(rows) if rows else torch.zeros(q.shape, dtype=torch.float64)


def int32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def small_inputs(indices8, indices4, length8, length4, sink=(0.5, -INF), seed: int = 0):
    """Two FP8 pages of 32 slots and three FP4 pages of 8: window slots 0 to 63, compressed slots 0 to 23."""
    q = normal(len(length8), 2, 64, seed=seed)
    return (
        q,
        fp8_pages(2, 32, 64, seed),
        fp4_pages(3, 8, 64, seed),
        int32(indices8).view(-1, 4),
        int32(indices4).view(-1, 6),
        int32(length8),
        int32(length4),
        torch.tensor(sink),
    )


EXAMPLE = dict(
    indices8=[[0, 63, 31, 32], [5, -1, 33, 7], [-1, 63, 2, 3], [9, -1, -1, -1], [-1, -1, -1, -1]],
    indices4=[
        [0, 8, 23, 7, 16, 15],
        [-1, 3, -1, 4, 22, 22],
        [23, 22, 0, 1, 9, 5],
        [-1, 3, 4, 5, 6, 8],
        [-1, -1, -1, -1, -1, -1],
    ],
    length8=[4, 4, 3, 1, 1],
    length4=[6, 5, 2, 1, 6],
)


@cache
def real_case():
    """(inputs, exact result): three tokens at positions 700, 40 and 0 of a ratio-2 layer, true dimensions."""
    kv8, kv4 = fp8_pages(3, 256, 512), fp4_pages(5, 128, 512)
    order8 = torch.randperm(3 * 256, generator=torch.Generator().manual_seed(8))
    order4 = torch.randperm(5 * 128, generator=torch.Generator().manual_seed(4))
    indices8, indices4 = torch.full((3, 128), -1), torch.full((3, 512), -1)
    length8, length4 = [128, 41, 1], [350, 20, 1]
    for b in range(3):
        indices8[b, : length8[b]] = order8[b:][: length8[b]]
        indices4[b, : length4[b]] = order4[b:][: length4[b]]
    indices4[0, 77] = indices4[2, 0] = -1
    inputs = (
        normal(3, 64, 512),
        kv8,
        kv4,
        indices8.int(),
        indices4.int(),
        int32(length8),
        int32(length4),
        torch.linspace(-2, 3, 64),
    )
    return inputs, exact(sdpa_attention, *inputs, SCALE)


def check_oracle(name: str, run) -> None:
    small = small_inputs(**EXAMPLE)
    with constants(run, **SMALL, TOKENS=2):
        assert_rounded_once(run(*small, 0.125), exact(looped_attention, *small, 0.125))
    inputs, expected = real_case()
    assert_rounded_once(run(*inputs, SCALE), expected)


def test_reference_is_the_exact_attention_rounded_once(reference):
    check_oracle(NAME, reference(NAME))


row8 = st.lists(st.integers(-1, 63), min_size=4, max_size=4)
row4 = st.lists(st.integers(-1, 23), min_size=6, max_size=6)
sinks = st.sampled_from([-INF, -300.0, -2.0, 0.0, 3.0, 80.0, 3e4, INF])


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(st.tuples(row8, row4, st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=4),
    sink=st.tuples(sinks, sinks),
    step=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_slots_lengths_and_sinks(reference, rows, sink, step, seed):
    inputs = small_inputs(*zip(*rows), sink=sink, seed=seed)
    with constants(reference(NAME), **SMALL, TOKENS=step) as run:
        output, expected = run(*inputs, 0.125), exact(looped_attention, *inputs, 0.125)
    torch.testing.assert_close(output.double(), expected, rtol=2**-8, atol=1e-5)


@settings(deadline=None, max_examples=15)
@given(order8=st.permutations(range(2)), order4=st.permutations(range(3)))
def test_page_order_is_irrelevant(reference, order8, order4):
    q, kv8, kv4, indices8, indices4, *rest = small_inputs(**EXAMPLE)
    moved8, slots8 = move_pages(kv8, indices8, order8)
    moved4, slots4 = move_pages(kv4, indices4, order4)
    with constants(reference(NAME), **SMALL) as run:
        output = run(q, kv8, kv4, indices8, indices4, *rest, 0.125)
        assert torch.equal(run(q, moved8, moved4, slots8, slots4, *rest, 0.125), output)


def move_pages(pages, indices, order):
    """Page i goes to order[i], and the slots follow it."""
    place, size = torch.tensor(order), pages.shape[1]
    moved = torch.empty_like(pages)
    moved[place] = pages
    slots = torch.where(indices < 0, indices, place[indices.clamp_min(0) // size] * size + indices % size)
    return moved, slots.int()


@pytest.mark.parametrize("byte", [0, 1, 0x7F, 0x80, 254, 255])
@pytest.mark.parametrize("cache", ["FP8", "FP4"])
def test_extreme_scale_bytes(cache, byte, reference):
    """E8M0: 0 is 2**-127, 255 NaN. E4M3: 0x80 is -0, 0x7F and 0xFF NaN. Only the reading token sees it."""
    inputs = small_inputs([[3] + [-1] * 3, [4] + [-1] * 3], [[9] + [-1] * 5, [10] + [-1] * 5], [1, 1], [1, 1])
    if cache == "FP8":  # slot 3: payload bytes from 3 * 64, scales after 32 payload rows
        content, payload, scale = inputs[1][0].view(-1), slice(3 * 64, 3 * 64 + 32), 32 * 64 + 3 * 2
    else:  # slot 9 is row 1 of page 1: payload bytes from 32, scales after 8 payload rows
        content, payload, scale = inputs[2][1].view(-1), slice(32, 32 + 8), 8 * 32 + 4
    content[payload] = 1  # small codes keep even 2**127 in range
    content[scale] = byte - 256 if byte > 127 else byte
    with constants(reference(NAME), **SMALL) as run:
        output, expected = run(*inputs, 0.125), exact(looped_attention, *inputs, 0.125)
    assert torch.equal(output.isnan(), expected.isnan()) and output[1].isfinite().all()
    torch.testing.assert_close(output.double(), expected, rtol=2**-8, atol=1e-5, equal_nan=True)


def test_only_named_slots_are_read(reference):
    inputs = small_inputs(**EXAMPLE)
    kv8, kv4 = torch.full_like(inputs[1], -1), torch.full_like(inputs[2], 0x7F)  # NaN payload and scales
    copy_slots(kv8, inputs[1], {slot for row in EXAMPLE["indices8"] for slot in row} - {-1}, 64)
    copy_slots(kv4, inputs[2], {slot for row in EXAMPLE["indices4"] for slot in row} - {-1}, 32)
    with constants(reference(NAME), **SMALL) as run:
        assert torch.equal(run(inputs[0], kv8, kv4, *inputs[3:], 0.125), run(*inputs, 0.125))


def copy_slots(target, source, slots, payload: int) -> None:
    per_page, scales = target.shape[1], target.shape[2] - payload
    for page, offset in (divmod(slot, per_page) for slot in slots):
        for start, size in ((offset * payload, payload), (per_page * payload + offset * scales, scales)):
            target[page].view(-1)[start : start + size] = source[page].view(-1)[start : start + size]


def test_no_compressed_page(reference):
    """Position 0 of a ratio-2 layer: one window slot, one empty compressed slot, no FP4 page at all."""
    inputs = list(small_inputs([[3, -1, -1, -1]], [[-1] * 6], [1], [1]))
    inputs[2] = inputs[2][:0]
    with constants(reference(NAME), **SMALL) as run:
        assert_rounded_once(run(*inputs, 0.125), exact(looped_attention, *inputs, 0.125))


def test_no_token(reference):
    inputs, _ = real_case()
    none = [x[:0] if place in (0, 3, 4, 5, 6) else x for place, x in enumerate(inputs)]
    assert reference(NAME)(*none, SCALE).shape == (0, 64, 512)


def test_agrees_with_sparse_prefill_on_the_dequantised_workspace(reference):
    """Both formats are exact in BF16, so the other family's reference must give the same numbers."""
    (q, kv8, kv4, indices8, indices4, length8, length4, sink), _ = real_case()
    used8, used4 = indices8[:2].flatten().unique()[1:].tolist(), indices4[:2].flatten().unique()[1:].tolist()
    rows = [fp8_key(kv8, slot, 512) for slot in used8] + [fp4_key(kv4, slot, 512) for slot in used4]
    place8 = {-1: -1} | {slot: row for row, slot in enumerate(used8)}
    place4 = {-1: -1} | {slot: row + len(used8) for row, slot in enumerate(used4)}
    indices = [
        [place8[i] for i in row8] + [place4[i] for i in row4]
        for row8, row4 in zip(indices8[:2].tolist(), indices4[:2].tolist())
    ]
    workspace = torch.tensor(rows, dtype=torch.float64)
    assert torch.equal(workspace.bfloat16().double(), workspace)
    other = reference(SPARSE_640)(
        q[:2], workspace.bfloat16()[:, None], int32(indices)[:, None], int32([640, 640]), sink, SCALE
    )
    decode = reference(NAME)(q[:2], kv8, kv4, indices8[:2], indices4[:2], length8[:2], length4[:2], sink, SCALE)
    assert torch.equal(other, decode)


def test_temporaries_grow_neither_with_tokens_nor_with_pages(reference):
    """The keys of a step of tokens are the largest: 4 * 32 * 640 * 512 B = 40 MiB at the published size."""
    W, C, D = 32, 32, 64
    for B, pages in ((4, 2), (20, 2), (20, 40)):
        slots = torch.arange(B * 32).view(B, 32) % (pages * 32)
        inputs = (
            normal(B, 2, D),
            fp8_pages(pages, 32, D),
            fp4_pages(pages, 32, D),
            slots.int(),
            slots.int(),
            int32([W] * B),
            int32([C] * B),
            torch.zeros(2),
        )
        with constants(reference(NAME), H=2, D=D, W=W, C=C, TOKENS=4) as run:
            assert temporary_bytes(lambda *x: run(*x, SCALE), *inputs)[0] == 4 * 4 * (W + C) * D


def test_inputs_and_precision_of_the_caller_survive(reference):
    with constants(reference(NAME), **SMALL) as run:
        assert_leaves_caller_alone(lambda *x: run(*x, 0.125), *small_inputs(**EXAMPLE))


def test_constants_agree_with_the_axes(definition, reference):
    axes, values = const_axes(definition(NAME)), reference(NAME).__globals__
    assert [values[axis] for axis in "HDWC"] == [axes[axis] for axis in "HDWC"] == [64, 512, 128, 512]
    assert axes["R8"] == 512 + 512 // values["GROUP8"] == 528
    assert axes["R4"] == 256 + 512 // values["GROUP4"] == 288


@pytest.mark.parametrize(
    "change, legal",
    [
        ({}, True),
        ({"length8": 0}, False),
        ({"length8": 129}, False),
        ({"length4": 513}, False),
        ({"length4": 2}, True),
        ({"indices4": -2}, False),
        ({"indices4": 3 * 128 * 5}, False),
        ({"indices8": 5}, False),
        ({"indices4": 5}, False),
    ],
)  # in range, but behind the row's length
def test_constraints(change, legal, definition):
    record, (inputs, _) = definition(NAME), real_case()
    named = dict(zip(record["inputs"], (x.clone() for x in inputs)))
    for name, value in change.items():
        named[name].view(-1)[-1] = value
    assert constraints_hold(record, *named.values(), SCALE) == legal


@pytest.mark.parametrize("name, label, old, new", MUTATIONS, ids=[" ".join(row[:2]) for row in MUTATIONS])
def test_mutations_are_caught(definition, name, label, old, new):
    run = mutated_reference(definition(name), old, new)
    with pytest.raises(AssertionError):
        check_oracle(name, run)
