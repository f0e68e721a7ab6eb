"""Grouped FP8 x FP4 GEMM in two Triton kernels: rows and tile list first, then the product.

Boundary: the whole definition. The first kernel decodes the activations to BF16 (exact) and lists the tiles:
runs of rows of one expert. The second reads the FP4 bytes of experts that own rows, decodes them in registers
to BF16 (exact) and multiplies there: the weights are the left operand, so that a tile needs 16 rows only, and
the bank is read once per tile. No BF16 weight is ever stored.
Adaptation: the sum over K runs in another order, in float32. The low and high nibbles of b's bytes meet the
even and the odd activations in two products of one accumulator, and in a run of 64 bytes each of the four
threads that share a weight row owns 16 neighbours: one load from shared memory and one scale.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import sys
from typing import NamedTuple

import torch
import triton
import triton.language as tl

GROUP = tl.constexpr(32)  # elements of K that share one scale
RUN = tl.constexpr(64)  # bytes of b inside which the order of the sum is changed


class Config(NamedTuple):
    """Tile sizes for calls with at most `rows` rows; block_k counts elements of K, two per byte."""

    rows: int
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# From a sweep on an H200 at N 5120. Tiles of block_k=512 gave wrong sums there.
CONFIGS = (
    Config(4096, block_m=16, block_n=128, block_k=128, warps=4, stages=4),
    Config(12288, block_m=32, block_n=128, block_k=128, warps=4, stages=4),
    Config(sys.maxsize, block_m=64, block_n=128, block_k=128, warps=4, stages=3),
)

# Four FP4 codes, one per byte of $2, become two words of two BF16 numbers. Sign and magnitude bits go to the
# sign and to the bits around the exponent's end: that is the value times 2**-126, for the subnormal code too.
# Multiplying by 2**126 and by the scale is exact. Fused multiply-adds with -0.0 are products on every GPU.
_DECODE = """{{
.reg .b32 v, s, m, big, none;
mov.b32 big, 0x7E807E80;
mov.b32 none, 0x80008000;
prmt.b32 v, $2, 0, 0x4140;
shl.b32 s, v, {sign};
shl.b32 m, v, {magnitude};
and.b32 s, s, 0x80008000;
and.b32 m, m, 0x01C001C0;
or.b32 m, m, s;
fma.rn.bf16x2 m, m, big, none;
fma.rn.bf16x2 $0, m, $3, none;
prmt.b32 v, $2, 0, 0x4342;
shl.b32 s, v, {sign};
shl.b32 m, v, {magnitude};
and.b32 s, s, 0x80008000;
and.b32 m, m, 0x01C001C0;
or.b32 m, m, s;
fma.rn.bf16x2 m, m, big, none;
fma.rn.bf16x2 $1, m, $4, none;
}}"""
DECODE_LOW = tl.constexpr(_DECODE.format(sign=12, magnitude=6))
DECODE_HIGH = tl.constexpr(_DECODE.format(sign=8, magnitude=2))


def run(a, a_scale, b, b_scale, expert_ids):
    """Multiply each row by its expert's weights.

    a int8 [M, K], a_scale int8 [M, K / 32], b int8 [E, N, K / 2], b_scale int8 [E, N, K / 32],
    expert_ids int32 [M] -> d bfloat16 [M, N].
    """
    return prepare(a, a_scale, b, b_scale, expert_ids)()


def prepare(a, a_scale, b, b_scale, expert_ids):
    (M, K), (E, N) = a.shape, b.shape[:2]
    config = next(config for config in CONFIGS if config.rows >= M)
    tiles = min(M, min(M, E) + M // config.block_m)  # at most: each expert's last tile may be partly filled
    x = torch.empty(M, K, dtype=torch.bfloat16, device=a.device)
    plan = torch.empty(3 * tiles + 1, dtype=torch.int32, device=a.device)
    pairs = a.view(torch.int16)

    def launch():
        d = torch.empty(M, N, dtype=torch.bfloat16, device=a.device)
        _rows_and_plan[(M + 1,)](
            pairs,
            a_scale,
            expert_ids,
            x,
            plan,
            M,
            tiles,
            K,
            E,
            config.block_m,
            M.bit_length(),
            triton.next_power_of_2(K // 2),
            triton.next_power_of_2(E),
        )
        _product[(tiles * (N // config.block_n),)](
            x,
            b,
            b_scale,
            plan,
            d,
            M,
            tiles,
            N,
            K,
            config.block_m,
            config.block_n,
            config.block_k,
            a.device.type == "cpu",
            num_warps=config.warps,
            num_stages=config.stages,
        )
        return d

    return launch


@triton.jit(do_not_specialize=["M", "tiles"])
def _rows_and_plan(
    pairs, a_scale, ids,
    x, plan,  # written
    M, tiles,
    K: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr,
    STEPS: tl.constexpr, PAIRS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Write the plan in program 0, decode row i in program i + 1."""
    if tl.program_id(0) == 0:
        _write_plan(ids, plan, M, tiles, E, BLOCK_M, STEPS, EXPERTS)
    else:
        row = (tl.program_id(0) - 1).to(tl.int64)
        place = tl.arange(0, PAIRS)
        inside = place < K // 2
        j = _byte_of(place)
        pair = tl.load(pairs + row * (K // 2) + j, mask=inside, other=0).to(tl.int32)
        scale = tl.load(a_scale + row * (K // GROUP) + j // (GROUP // 2), mask=inside, other=0)
        power = _power_of_two(scale)
        target = x + row * K + place
        tl.store(target, (_e4m3(pair & 0xFF) * power).to(tl.bfloat16), mask=inside)
        tl.store(target + K // 2, (_e4m3((pair >> 8) & 0xFF) * power).to(tl.bfloat16), mask=inside)


@triton.jit
def _byte_of(place):
    """Return the byte of a row of b that `_as_fragments` moves to a place."""
    thread, block, half = place // 2 % 4, place // 16 % 4, place // 8 % 2
    return place // RUN * RUN + 16 * thread + 4 * block + 2 * half + place % 2


@triton.jit
def _write_plan(
    ids, plan, M, tiles, E: tl.constexpr, BLOCK_M: tl.constexpr, STEPS: tl.constexpr, EXPERTS: tl.constexpr
):
    """Write the plan: the experts, first rows and end rows of `tiles` tiles, then how many of them are used."""
    expert = tl.arange(0, EXPERTS)
    start = _first_at_least(ids, expert, M, STEPS)
    end = _first_at_least(ids, expert + 1, M, STEPS)
    count = tl.where(expert < E, (end - start + BLOCK_M - 1) // BLOCK_M, 0)
    place = plan + tl.cumsum(count, 0) - count
    turn = 0
    most = tl.max(count, 0)
    while turn < most:
        tl.store(place + turn, expert, mask=turn < count)
        tl.store(place + tiles + turn, start + turn * BLOCK_M, mask=turn < count)
        tl.store(place + 2 * tiles + turn, end, mask=turn < count)
        turn += 1
    tl.store(plan + 3 * tiles, tl.sum(count, 0))


@triton.jit
def _first_at_least(ids, key, M, STEPS: tl.constexpr):
    """Count the rows whose expert is below `key` by binary search in non-decreasing ids."""
    low = tl.zeros_like(key)
    high = low + M
    for _ in range(STEPS):
        middle = (low + high) // 2
        below = (low < high) & (tl.load(ids + middle, mask=low < high, other=0) < key)
        high = tl.where(below, high, middle)
        low = tl.where(below, middle + 1, low)
    return low


@triton.jit
def _e4m3(code):
    """Decode an E4M3FN byte given as int32 to float32: 127 and 255 are NaN, there is no infinity."""
    magnitude = code & 0x7F
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where(code > 0x7F, -value, value)


@triton.jit
def _power_of_two(code):
    """Decode an E8M0 byte carried as int8 to float32 2**(code - 127): 0 is subnormal, 255 is NaN."""
    code = code.to(tl.int32) & 0xFF
    bits = tl.where(code == 0, 1 << 22, tl.where(code == 255, 0x7FC00000, code << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["M", "tiles"])  # otherwise M = 1 and multiples of 16 compile separate kernels
def _product(
    x, b, b_scale, plan, d, M, tiles,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of rows by BLOCK_N weight rows of its expert, transposed: sums are [BLOCK_N, BLOCK_M]."""
    tile = tl.program_id(0) // (N // BLOCK_N)
    if tile >= tl.load(plan + 3 * tiles):
        return
    columns = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_rows = tl.load(plan + tile).to(tl.int64) * N + columns
    rows = tl.load(plan + tiles + tile) + tl.arange(0, BLOCK_M)
    pair = tl.arange(0, BLOCK_K // 2)
    codes = b + weight_rows[:, None] * (K // 2) + pair[None]
    scales = b_scale + weight_rows[:, None] * (K // GROUP) + tl.arange(0, BLOCK_K // GROUP)[None]
    # Rows past the tile's end belong to others or repeat the last one: their sums are not stored.
    even = x + tl.minimum(rows, M - 1).to(tl.int64)[None] * K + pair[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(0, K // 2, BLOCK_K // 2):
        code = _as_fragments(tl.load(codes + k))
        scale = _spread(_power_of_two(tl.load(scales + k // (GROUP // 2))), INTERPRET)
        total = _multiply(_low(code, scale, INTERPRET), tl.load(even + k), total, INTERPRET)
        total = _multiply(_high(code, scale, INTERPRET), tl.load(even + K // 2 + k), total, INTERPRET)
    end = tl.load(plan + 2 * tiles + tile)
    place = d + rows.to(tl.int64)[None] * N + columns[:, None]
    tl.store(place, total.to(tl.bfloat16), mask=(rows < end)[None])


@triton.jit
def _as_fragments(code):
    """Reorder bytes [R, C] of runs (thread, block, half, 2) to (block, half, thread, 2): blocks of 16 of the sum."""
    runs = tl.reshape(code, (code.shape[0], code.shape[1] // RUN, 4, 4, 2, 2))
    return tl.reshape(tl.permute(runs, (0, 1, 3, 4, 2, 5)), (code.shape[0], code.shape[1]))


@triton.jit
def _spread(scale, INTERPRET: tl.constexpr):
    """Repeat the scales [R, groups] per byte in the order of `_as_fragments`: [R, 16 * groups]."""
    runs = tl.reshape(scale, (scale.shape[0], scale.shape[1] // 4, 1, 1, 4, 1))
    wide = tl.broadcast_to(runs, (scale.shape[0], scale.shape[1] // 4, 4, 2, 4, 2))
    wide = tl.reshape(wide, (scale.shape[0], scale.shape[1] * (GROUP // 2)))
    return wide if INTERPRET else wide.to(tl.bfloat16)


@triton.jit
def _low(code, scale, INTERPRET: tl.constexpr):
    if INTERPRET:
        return _fp4(code.to(tl.int32)) * scale
    return tl.inline_asm_elementwise(DECODE_LOW, "=r,=r,r,r,r", [code, scale], tl.bfloat16, True, pack=4)


@triton.jit
def _high(code, scale, INTERPRET: tl.constexpr):
    if INTERPRET:
        return _fp4(code.to(tl.int32) >> 4) * scale
    return tl.inline_asm_elementwise(DECODE_HIGH, "=r,=r,r,r,r", [code, scale], tl.bfloat16, True, pack=4)


@triton.jit
def _fp4(code):
    """Decode the low four bits to float32 by the same shift of bits as the inline assembly."""
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def _multiply(weight, x, total, INTERPRET: tl.constexpr):
    """Return total + weight @ x. The interpreter multiplies bfloat16 wrongly: there both operands are float32."""
    return tl.dot(weight, x.to(tl.float32) if INTERPRET else x, total)
