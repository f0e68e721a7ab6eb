"""Latent decode attention over FP8 and FP4 pages in Triton: split over slots, then joined.

Boundary: the whole definition. A program of the first kernel owns one token with all 64 heads and a share of
the tiles of slots that the token's lengths leave: it reads the pages as they are, dequantises a tile in
registers (exact in BF16) and uses it for both products. The second kernel joins the shares of a token and
adds the sink; it is left out where a token has one share. Adaptation: none. Scores, softmax and sums are
float32; probabilities are rounded to BF16 for the second product. FP8 conversion needs sm_89 or newer.

Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones, of up
to 16 tokens. With seeded inputs of 16 and more tokens some elements missed the bound; with
`torch_<definition>`, float32 throughout, none did.
"""

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
PROGRAMS = 132  # about one per multiprocessor of an H200: a program's queries and accumulator fill one
# Slots per tile, warps and stages, then the joining kernel's; from sweeps on an H200 at up to 64 tokens.
BLOCK_SLOTS = 64
WARPS, STAGES = 8, 1
JOIN_HEADS, JOIN_WARPS = 4, 4


@triton.jit
def _fp8_keys(pages, slot, valid, P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """Load float32 [BLOCK, D] of an FP8 page: P rows of E4M3 bytes, then P rows of an E8M0 byte per 32 values."""
    page, offset = (slot // P).to(tl.int64) * (P * (D + D // 32)), slot % P
    codes = tl.load(pages + (page + offset * D)[:, None] + tl.arange(0, D)[None], mask=valid[:, None], other=0)
    powers = tl.load(
        pages + (page + P * D + offset * (D // 32))[:, None] + tl.arange(0, D // 32)[None], mask=valid[:, None], other=0
    ).to(tl.int32)
    bits = tl.where(powers == 0, 1 << 22, tl.where(powers == 255, 0x7FC00000, powers << 23))
    values = tl.reshape(codes, (BLOCK, D // 32, 32)).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return tl.reshape(values * bits.to(tl.float32, bitcast=True)[:, :, None], (BLOCK, D))


@triton.jit
def _e2m1(code):
    """Decode E2M1 codes to float32, times 2**-14: as float16 with the same exponent and mantissa bits."""
    bits = ((code & 7) << 9) | ((code & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _fp4_keys(pages, slot, valid, P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """Load float32 [BLOCK, D] of an FP4 page: P rows of E2M1 pairs, then P rows of an E4M3 byte per 16 values."""
    page, offset = (slot // P).to(tl.int64) * (P * (D // 2 + D // 16)), slot % P
    pairs = tl.load(
        pages + (page + offset * (D // 2))[:, None] + tl.arange(0, D // 2)[None], mask=valid[:, None], other=0
    ).to(tl.int32)
    scale = tl.load(
        pages + (page + P * (D // 2) + offset * (D // 16))[:, None] + tl.arange(0, D // 16)[None],
        mask=valid[:, None],
        other=0,
    )
    scale = scale.to(tl.float8e4nv, bitcast=True).to(tl.float32) * 16384.0
    values = tl.reshape(tl.join(_e2m1(pairs & 15), _e2m1(pairs >> 4)), (BLOCK, D // 16, 16))
    return tl.reshape(values * scale[:, :, None], (BLOCK, D))


@triton.jit
def _step(queries, keys, valid, scale_log2, top, total, weighted):
    """Add one tile to the online softmax in base 2."""
    scores = tl.dot(queries, tl.trans(keys)) * scale_log2
    scores = tl.where(valid[None, :], scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -float("inf"), 0.0, new_top)  # no valid slot so far: all weights are 0
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    weighted = tl.dot(weights.to(keys.dtype), keys, weighted * shrink[:, None])
    return new_top, total, weighted


@triton.jit
def _finish(weighted, total, top, sink):
    """Return the BF16 result of a softmax whose denominator also holds the sink."""
    base = tl.where(top == -float("inf"), 0.0, top)
    total += tl.exp2(sink * LOG2_E - base)
    return (weighted / tl.where(total == 0.0, 1.0, total)[:, None]).to(tl.bfloat16)


@triton.jit
def _attend(
    q, pages8, pages4, indices8, indices4, length8, length4, attn_sink,
    output, sums, tops, totals,  # written: output unsplit, the others split
    scale_log2,
    P8: tl.constexpr, P4: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    token, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, dim, lane = tl.arange(0, H), tl.arange(0, D), tl.arange(0, BLOCK)
    place = head[:, None] * D + dim[None, :]
    queries = tl.load(q + token * H * D + place)
    # The interpreter multiplies the bit patterns of BF16, and takes no loop bound from memory.
    number: tl.constexpr = tl.float32 if INTERPRET else tl.bfloat16
    queries = queries.to(number)
    end8, end4 = tl.load(length8 + token), tl.load(length4 + token)
    tiles8, tiles4 = tl.cdiv(end8, BLOCK), tl.cdiv(end4, BLOCK)
    first, last = (tiles8 + tiles4) * split // SPLITS, (tiles8 + tiles4) * (split + 1) // SPLITS
    top = tl.full((H,), -float("inf"), tl.float32)
    total = tl.zeros((H,), tl.float32)
    weighted = tl.zeros((H, D), tl.float32)
    for tile in range(0 if INTERPRET else first, W // BLOCK if INTERPRET else tl.minimum(last, tiles8)):
        at = tile * BLOCK + lane
        mine = (at < end8) & (tile >= first) & (tile < last)
        slot = tl.load(indices8 + token * W + at, mask=mine, other=-1)
        keys = _fp8_keys(pages8, slot, slot >= 0, P8, D, BLOCK).to(number)
        top, total, weighted = _step(queries, keys, slot >= 0, scale_log2, top, total, weighted)
    for tile in range(0 if INTERPRET else tl.maximum(first - tiles8, 0), C // BLOCK if INTERPRET else last - tiles8):
        at = tile * BLOCK + lane
        mine = (at < end4) & (tile >= first - tiles8) & (tile < last - tiles8)
        slot = tl.load(indices4 + token * C + at, mask=mine, other=-1)
        keys = _fp4_keys(pages4, slot, slot >= 0, P4, D, BLOCK).to(number)
        top, total, weighted = _step(queries, keys, slot >= 0, scale_log2, top, total, weighted)
    if SPLITS == 1:
        tl.store(output + token * H * D + place, _finish(weighted, total, top, tl.load(attn_sink + head)))
    else:
        part = token * SPLITS + split
        tl.store(sums + part * H * D + place, weighted)
        tl.store(tops + part * H + head, top)
        tl.store(totals + part * H + head, total)


@triton.jit
def _join(
    sums, tops, totals, attn_sink, output, H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head, dim = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, D)
    place = head[:, None] * D + dim[None, :]
    first = token * SPLITS
    top = tl.load(tops + first * H + head)
    for split in tl.static_range(1, SPLITS):
        top = tl.maximum(top, tl.load(tops + (first + split) * H + head))
    base = tl.where(top == -float("inf"), 0.0, top)
    total = tl.zeros((HEADS,), tl.float32)
    weighted = tl.zeros((HEADS, D), tl.float32)
    for split in tl.static_range(SPLITS):
        share = tl.exp2(tl.load(tops + (first + split) * H + head) - base)
        total += share * tl.load(totals + (first + split) * H + head)
        weighted += share[:, None] * tl.load(sums + (first + split) * H * D + place)
    tl.store(output + token * H * D + place, _finish(weighted, total, top, tl.load(attn_sink + head)))


def run(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    """Return output: bfloat16 [B, 64, 512]. Inputs as in the definition."""
    return prepare(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale)()


def splits_for(tokens, slots):
    """Choose the shares per token: as many as keep the multiprocessors busy, none larger than it must be."""
    tiles = slots // BLOCK_SLOTS
    return triton.cdiv(tiles, triton.cdiv(tiles, max(1, PROGRAMS // tokens)))


def prepare(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    (B, H, D), W, C = q.shape, indices8.shape[1], indices4.shape[1]
    P8, P4 = kv8_pages.shape[1], kv4_pages.shape[1]
    splits = splits_for(B, W + C)
    sums, tops, totals = (
        torch.empty(B, splits, H, *last, dtype=torch.float32, device=q.device) for last in ((D,), (), ())
    )
    bytes8, bytes4 = kv8_pages.view(torch.uint8), kv4_pages.view(torch.uint8)

    def launch():
        output = torch.empty_like(q)
        _attend[(B, splits)](
            q,
            bytes8,
            bytes4,
            indices8,
            indices4,
            length8,
            length4,
            attn_sink,
            output,
            sums,
            tops,
            totals,
            sm_scale * LOG2_E.value,
            P8,
            P4,
            W,
            C,
            H,
            D,
            BLOCK_SLOTS,
            splits,
            q.device.type == "cpu",
            num_warps=WARPS,
            num_stages=STAGES,
        )
        if splits > 1:
            _join[(B, H // JOIN_HEADS)](
                sums, tops, totals, attn_sink, output, H, D, JOIN_HEADS, splits, num_warps=JOIN_WARPS
            )
        return output

    return launch
