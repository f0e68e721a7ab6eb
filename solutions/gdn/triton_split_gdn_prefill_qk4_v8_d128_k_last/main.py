"""Gated delta rule over packed sequences in three Triton kernels, for few and long sequences.

Chunks of 64 tokens. With G the running sum of log decays inside a chunk, S the state before it, u(i) the vector
that token i writes:

    u(i) + beta(i) sum over j < i of exp(G(i) - G(j)) (k(i) . k(j)) u(j) = beta(i) (v(i) - exp(G(i)) S k(i))

`solve` inverts that triangular system, I + L, for all chunks at once and applies the inverse to the keys (W)
and to the values (U), so that u = U - W S. `scan` walks the chunks of a sequence in order, for a slice of the
value dimension: it forms u and the next state, nothing else. `attend` forms the outputs of all chunks at once
from the states and the u that `scan` left. Against the two kernels of `triton_<definition>`, this keeps the
outputs out of the walk, which is what one long sequence waits for, and moves more memory: short sequences and
many of them are faster there.

Precision: q, k and v are BF16 and enter the tensor cores unchanged; a float32 operand enters as the sum of
two BF16 numbers (16 bits of mantissa), so the state is far closer to float32 than with BF16 operands. The
inverse is exact substitution in blocks of 16, joined by float32-like products; powers of L itself would
overflow the mantissa where keys repeat. Boundary: the whole definition, gates included. Needs torch and
Triton alone.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import math

import torch
import triton
import triton.language as tl

HEAD_SIZE, CHUNK, BLOCK = 128, 64, 16
SOLVE_WARPS, ATTEND_COLUMNS, ATTEND_WARPS = 4, 128, 4
# Fewest value slices (sequences * heads * slices of 32) from which each row of the table applies -> value
# columns per program, warps, stages. Few sequences spread a state over more programs. From a sweep on an
# H200 at 1 sequence of 8192 tokens and at 16 of 512.
SCAN_CONFIGURATIONS = ((512, 64, 4, 1), (0, 16, 4, 3))


@triton.jit
def halves(value, INTERPRET: tl.constexpr):
    """Split float32 into two BF16 terms; on CPU into the value itself and zero."""
    if INTERPRET:
        return value, tl.zeros_like(value)
    high = value.to(tl.bfloat16)
    return high, (value - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def product(left, right, INTERPRET: tl.constexpr):
    """Multiply BF16 `left` by float32 `right`, the latter as two BF16 terms."""
    if INTERPRET:
        return tl.dot(left.to(tl.float32), right)
    high = right.to(tl.bfloat16)
    low = (right - high.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(left, high, tl.dot(left, low))


@triton.jit
def product_of_floats(left, right, INTERPRET: tl.constexpr):
    """Multiply float32 operands, each as two BF16 terms, without the product of the small terms."""
    if INTERPRET:
        return tl.dot(left, right)
    high = left.to(tl.bfloat16)
    low = (left - high.to(tl.float32)).to(tl.bfloat16)
    right_high = right.to(tl.bfloat16)
    right_low = (right - right_high.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(high, right_high, tl.dot(high, right_low, tl.dot(low, right_high)))


@triton.jit
def inverse(lower, CHUNK: tl.constexpr, BLOCK: tl.constexpr, INTERPRET: tl.constexpr):
    """Invert I + lower for a strictly lower triangular [CHUNK, CHUNK]."""
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    index = tl.arange(0, CHUNK)
    same_block = (index[:, None] // BLOCK) == (index[None, :] // BLOCK)
    block = tl.arange(0, BLOCKS)
    diagonal = (block[:, None] == block[None, :])[:, None, :, None]
    blocks = tl.reshape(tl.where(same_block, lower, 0.0), [BLOCKS, BLOCK, BLOCKS, BLOCK])
    blocks = tl.sum(blocks, axis=2)  # the diagonal ones: [BLOCKS, BLOCK, BLOCK]

    row = tl.arange(0, BLOCK)
    solved = -blocks
    for i in range(2, BLOCK):
        here = row[None, :] == i
        coefficients = tl.sum(tl.where(here[:, :, None], -blocks, 0.0), axis=1)
        update = coefficients + tl.sum(coefficients[:, :, None] * solved, axis=1)
        solved = tl.where(here[:, :, None], update[:, None, :], solved)
    solved = tl.where(row[None, :, None] == row[None, None, :], 1.0, solved)
    wide = tl.where(diagonal, tl.reshape(solved, [BLOCKS, BLOCK, 1, BLOCK]), 0.0)
    wide = tl.reshape(wide, [CHUNK, CHUNK])

    # I + lower = (I + X) applied after the diagonal blocks, X strictly block triangular: X^BLOCKS = 0.
    identity = tl.where(index[:, None] == index[None, :], 1.0, 0.0)
    x = product_of_floats(wide, tl.where(same_block, 0.0, lower), INTERPRET)
    square = product_of_floats(x, x, INTERPRET)
    series = product_of_floats(identity - x, identity + square, INTERPRET)
    return product_of_floats(series, wide, INTERPRET)


@triton.jit
def chunk_place(cu_seqlens, num_seqs, chunk, CHUNK: tl.constexpr, SEQUENCES: tl.constexpr):
    """Find a chunk among those of all sequences: its first token and its sequence's end; 0, 0 for none."""
    sequences = tl.arange(0, SEQUENCES)
    known = sequences < num_seqs
    starts = tl.load(cu_seqlens + sequences, mask=known, other=0).to(tl.int32)
    ends = tl.load(cu_seqlens + sequences + 1, mask=known, other=0).to(tl.int32)
    chunks = (ends - starts + CHUNK - 1) // CHUNK
    before = tl.cumsum(chunks, axis=0) - chunks
    mine = known & (before <= chunk) & (chunk < before + chunks)
    first = tl.sum(tl.where(mine, starts + (chunk - before) * CHUNK, 0), axis=0)
    return first, tl.sum(tl.where(mine, ends, 0), axis=0)


@triton.jit
def solve(
    k, v, A_log, a, dt_bias, b, cu_seqlens,
    sums, high, low, values,  # written
    num_seqs,
    GROUP: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, SEQUENCES: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (chunk of any sequence, value head).

    sums [tokens, heads]: running log decays of the chunk; high + low = W and values = U [tokens, heads, SIZE].
    """
    head, heads = tl.program_id(1), tl.num_programs(1)
    first, end = chunk_place(cu_seqlens, num_seqs, tl.program_id(0), CHUNK, SEQUENCES)
    if first >= end:
        return

    index = tl.arange(0, CHUNK)
    tokens = first + index
    real = tokens < end
    gate_at = tokens * heads + head
    gate = tl.load(a + gate_at, mask=real, other=0.0).to(tl.float32) + tl.load(dt_bias + head)
    softplus = tl.maximum(gate, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(gate)))
    log_decay = tl.where(real, -tl.exp(tl.load(A_log + head)) * softplus, 0.0)
    total = tl.cumsum(log_decay, axis=0)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b + gate_at, mask=real, other=0.0).to(tl.float32)))

    columns = tl.arange(0, SIZE)
    key_heads = heads // GROUP
    at = (tokens[:, None] * key_heads + head // GROUP) * SIZE + columns[None, :]
    keys = tl.load(k + at, mask=real[:, None], other=0.0)
    if INTERPRET:
        keys = keys.to(tl.float32)
    earlier = index[:, None] > index[None, :]
    weight = tl.exp(tl.where(earlier, total[:, None] - total[None, :], -float("inf")))
    lower = tl.dot(keys, tl.trans(keys)) * weight * beta[:, None]
    inverted = inverse(lower, CHUNK, BLOCK, INTERPRET) * beta[None, :]
    tl.store(sums + gate_at, total, mask=real)

    to = gate_at[:, None] * SIZE + columns[None, :]
    upper, rest = halves(product_of_floats(inverted, tl.exp(total)[:, None] * keys, INTERPRET), INTERPRET)
    tl.store(high + to, upper, mask=real[:, None])
    tl.store(low + to, rest, mask=real[:, None])
    written = tl.load(v + to, mask=real[:, None], other=0.0)
    upper, rest = halves(inverted, INTERPRET)
    if INTERPRET:
        written = written.to(tl.float32)
    tl.store(values + to, tl.dot(upper, written, tl.dot(rest, written)), mask=real[:, None])


@triton.jit
def scan(
    k, state, cu_seqlens,
    sums, high, low,  # read
    values, states, new_state,  # written
    num_seqs,
    HAS_STATE: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr, SEQUENCES: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (slice of COLUMNS value columns, value head, sequence); it holds its state transposed.

    values: U becomes u in place. states [chunks, heads, SIZE, SIZE]: transposed, before each chunk.
    """
    head, heads = tl.program_id(1), tl.num_programs(1)
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence).to(tl.int32)
    end = tl.load(cu_seqlens + sequence + 1).to(tl.int32)
    others = tl.arange(0, SEQUENCES)
    earlier = others < sequence
    lengths = tl.load(cu_seqlens + others + 1, mask=earlier, other=0)
    lengths -= tl.load(cu_seqlens + others, mask=earlier, other=0)
    chunk = tl.sum(((lengths + CHUNK - 1) // CHUNK).to(tl.int32), axis=0)

    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    channels = tl.arange(0, SIZE)
    index = tl.arange(0, CHUNK)
    cell = (sequence * heads + head).to(tl.int64) * SIZE * SIZE + columns[None, :] * SIZE + channels[:, None]
    current = tl.zeros([SIZE, COLUMNS], tl.float32)
    if HAS_STATE:
        if start < end:
            current = tl.load(state + cell)

    key_heads = heads // GROUP
    place = channels[:, None] * SIZE + columns[None, :]
    for first in range(start, end, CHUNK):
        tokens = first + index
        real = tokens < end
        row = tokens * heads + head
        keys = tl.load(
            k + (tokens[:, None] * key_heads + head // GROUP) * SIZE + channels[None, :], mask=real[:, None], other=0.0
        )
        wide = row[:, None] * SIZE + channels[None, :]
        upper = tl.load(high + wide, mask=real[:, None], other=0.0)
        rest = tl.load(low + wide, mask=real[:, None], other=0.0)
        at = row[:, None] * SIZE + columns[None, :]
        written = tl.load(values + at, mask=real[:, None], other=0.0)
        last = tl.load(sums + (tl.minimum(first + CHUNK, end) - 1) * heads + head)
        total = tl.load(sums + row, mask=real, other=0.0)

        tl.store(states + (chunk * heads + head).to(tl.int64) * SIZE * SIZE + place, current)
        one, two = halves(current, INTERPRET)
        written -= tl.dot(upper, one, tl.dot(upper, two, tl.dot(rest, one)))
        tl.store(values + at, written, mask=real[:, None])
        if INTERPRET:
            keys = keys.to(tl.float32)
        remaining = tl.exp(tl.where(real, last - total, -float("inf")))
        current = tl.exp(last) * current + product(tl.trans(keys), remaining[:, None] * written, INTERPRET)
        chunk += 1
    tl.store(new_state + cell, current)


@triton.jit
def attend(
    q, k, cu_seqlens,
    sums, values, states,  # of `solve` and `scan`
    scale, output, num_seqs,
    GROUP: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr, SEQUENCES: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (chunk of any sequence, value head, slice of COLUMNS value columns)."""
    head, heads = tl.program_id(1), tl.num_programs(1)
    first, end = chunk_place(cu_seqlens, num_seqs, tl.program_id(0), CHUNK, SEQUENCES)
    if first >= end:
        return
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    channels = tl.arange(0, SIZE)
    index = tl.arange(0, CHUNK)
    tokens = first + index
    real = tokens < end
    row = tokens * heads + head
    at = (tokens[:, None] * (heads // GROUP) + head // GROUP) * SIZE + channels[None, :]
    keys = tl.load(k + at, mask=real[:, None], other=0.0)
    queries = tl.load(q + at, mask=real[:, None], other=0.0)
    value_at = row[:, None] * SIZE + columns[None, :]
    written = tl.load(values + value_at, mask=real[:, None], other=0.0)
    before = tl.load(
        states
        + (tl.program_id(0) * heads + head).to(tl.int64) * SIZE * SIZE
        + channels[:, None] * SIZE
        + columns[None, :]
    )
    total = tl.load(sums + row, mask=real, other=0.0)
    if INTERPRET:
        keys, queries = keys.to(tl.float32), queries.to(tl.float32)
    not_later = (index[:, None] >= index[None, :]) & real[:, None]
    within = tl.exp(tl.where(not_later, total[:, None] - total[None, :], -float("inf")))
    result = tl.exp(total)[:, None] * product(queries, before, INTERPRET)
    result += product_of_floats(tl.dot(queries, tl.trans(keys)) * within, written, INTERPRET)
    tl.store(output + value_at, (scale * result).to(output.dtype.element_ty), mask=real[:, None])


def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    tokens, heads, _ = v.shape
    num_seqs = cu_seqlens.shape[0] - 1
    scale = float(scale or 1.0 / math.sqrt(HEAD_SIZE))
    interpret = v.device.type == "cpu"
    slices = num_seqs * heads * (HEAD_SIZE // 32)
    columns, warps, stages = next(choice[1:] for choice in SCAN_CONFIGURATIONS if slices >= choice[0])
    if interpret:
        columns = HEAD_SIZE  # the interpreter takes time per program
    chunks = triton.cdiv(tokens, CHUNK) + num_seqs  # each sequence may end in a chunk that is not full
    common = {
        "GROUP": heads // k.shape[1],
        "SIZE": HEAD_SIZE,
        "CHUNK": CHUNK,
        "INTERPRET": interpret,
        "SEQUENCES": max(16, triton.next_power_of_2(num_seqs)),
    }
    solving = common | {"BLOCK": BLOCK, "num_warps": SOLVE_WARPS}
    scanning = common | {"HAS_STATE": state is not None, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}
    attending = common | {"COLUMNS": ATTEND_COLUMNS, "num_warps": ATTEND_WARPS}
    inputs = k, v, A_log, a, dt_bias, b, cu_seqlens
    half = torch.float32 if interpret else torch.bfloat16

    def launch():
        output = torch.empty_like(v)
        new_state = v.new_empty(num_seqs, heads, HEAD_SIZE, HEAD_SIZE, dtype=torch.float32)
        sums = v.new_empty(tokens, heads, dtype=torch.float32)
        high, low = torch.empty_like(v, dtype=half), torch.empty_like(v, dtype=half)
        values = torch.empty_like(v, dtype=torch.float32)
        states = v.new_empty(chunks, heads, HEAD_SIZE, HEAD_SIZE, dtype=torch.float32)
        if tokens:
            solve[(chunks, heads)](*inputs, sums, high, low, values, num_seqs, **solving)
        scan[(HEAD_SIZE // columns, heads, num_seqs)](
            k, state, cu_seqlens, sums, high, low, values, states, new_state, num_seqs, **scanning
        )
        if tokens:
            attend[(chunks, heads, HEAD_SIZE // ATTEND_COLUMNS)](
                q, k, cu_seqlens, sums, values, states, scale, output, num_seqs, **attending
            )
        return output, new_state

    return launch
