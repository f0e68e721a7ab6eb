"""Gated delta rule over packed sequences in two Triton kernels, by chunks of 64 tokens.

With G the running sum of log decays inside a chunk, S the state before it, u(i) the vector that token i
writes:

    u(i) + beta(i) sum over j < i of exp(G(i) - G(j)) (k(i) . k(j)) u(j) = beta(i) (v(i) - exp(G(i)) S k(i))

`solve` inverts that triangular system, I + L, for all chunks at once; `scan` walks the chunks of a sequence
in order, for a slice of the value dimension, and forms u, the outputs and the next state.

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
SOLVE_WARPS = 4
# Fewest value slices (sequences * heads * slices of 32) from which each row of the table applies -> value
# columns per program, warps, stages. Few sequences spread a state over more programs. From a sweep on an
# H200 at 1 and 16 sequences of 8192 tokens in all.
SCAN_CONFIGURATIONS = ((512, 64, 4, 1), (0, 16, 4, 3))


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
def solve(
    k, A_log, a, dt_bias, b, cu_seqlens,
    sums, solution,  # written
    num_seqs,
    GROUP: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, SEQUENCES: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (chunk of any sequence, value head).

    sums [tokens, heads]: running log decays of the chunk; solution [tokens, heads, CHUNK]: the inverse, its
    columns times beta.
    """
    head, heads = tl.program_id(1), tl.num_programs(1)
    sequences = tl.arange(0, SEQUENCES)
    known = sequences < num_seqs
    starts = tl.load(cu_seqlens + sequences, mask=known, other=0).to(tl.int32)
    ends = tl.load(cu_seqlens + sequences + 1, mask=known, other=0).to(tl.int32)
    chunks = (ends - starts + CHUNK - 1) // CHUNK
    before = tl.cumsum(chunks, axis=0) - chunks
    mine = known & (before <= tl.program_id(0)) & (tl.program_id(0) < before + chunks)
    if tl.sum(mine.to(tl.int32), axis=0) == 0:
        return
    first = tl.sum(tl.where(mine, starts + (tl.program_id(0) - before) * CHUNK, 0), axis=0)
    end = tl.sum(tl.where(mine, ends, 0), axis=0)

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
    tl.store(solution + gate_at[:, None].to(tl.int64) * CHUNK + index[None, :], inverted, mask=real[:, None])


@triton.jit
def scan(
    q, k, v, state, cu_seqlens,
    sums, solution, scale,  # of `solve`
    output, new_state,  # written
    HAS_STATE: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, COLUMNS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (slice of COLUMNS value columns, value head, sequence); it holds its state transposed."""
    head, heads = tl.program_id(1), tl.num_programs(1)
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence).to(tl.int32)
    end = tl.load(cu_seqlens + sequence + 1).to(tl.int32)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    channels = tl.arange(0, SIZE)
    index = tl.arange(0, CHUNK)
    cell = (sequence * heads + head).to(tl.int64) * SIZE * SIZE + columns[None, :] * SIZE + channels[:, None]
    current = tl.zeros([SIZE, COLUMNS], tl.float32)
    if HAS_STATE:
        if start < end:
            current = tl.load(state + cell)

    key_heads = heads // GROUP
    not_later = index[:, None] >= index[None, :]
    for first in range(start, end, CHUNK):
        tokens = first + index
        real = tokens < end
        row = tokens * heads + head
        at = (tokens[:, None] * key_heads + head // GROUP) * SIZE + channels[None, :]
        keys = tl.load(k + at, mask=real[:, None], other=0.0)
        queries = tl.load(q + at, mask=real[:, None], other=0.0)
        value_at = row[:, None] * SIZE + columns[None, :]
        values = tl.load(v + value_at, mask=real[:, None], other=0.0).to(tl.float32)
        solution_at = row[:, None].to(tl.int64) * CHUNK + index[None, :]
        weights = tl.load(solution + solution_at, mask=real[:, None], other=0.0)
        last = tl.load(sums + (tl.minimum(first + CHUNK, end) - 1) * heads + head)
        total = tl.load(sums + row, mask=real, other=0.0)
        decay = tl.exp(total)

        missing = values - decay[:, None] * product(keys, current, INTERPRET)
        written = product_of_floats(weights, missing, INTERPRET)
        if INTERPRET:
            keys, queries = keys.to(tl.float32), queries.to(tl.float32)
        within = tl.exp(tl.where(not_later & real[:, None], total[:, None] - total[None, :], -float("inf")))
        scores = tl.dot(queries, tl.trans(keys)) * within
        result = decay[:, None] * product(queries, current, INTERPRET)
        result += product_of_floats(scores, written, INTERPRET)
        tl.store(output + value_at, (scale * result).to(output.dtype.element_ty), mask=real[:, None])
        remaining = tl.exp(tl.where(real, last - total, -float("inf")))
        current = tl.exp(last) * current + product(tl.trans(keys), remaining[:, None] * written, INTERPRET)
    tl.store(new_state + cell, current)


def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    tokens, heads, _ = v.shape
    num_seqs = cu_seqlens.shape[0] - 1
    scale = float(scale or 1.0 / math.sqrt(HEAD_SIZE))
    group, interpret = heads // k.shape[1], v.device.type == "cpu"
    slices = num_seqs * heads * (HEAD_SIZE // 32)
    columns, warps, stages = next(choice[1:] for choice in SCAN_CONFIGURATIONS if slices >= choice[0])
    if interpret:
        columns = HEAD_SIZE  # the interpreter takes time per program
    most_chunks = triton.cdiv(tokens, CHUNK) + num_seqs  # each sequence may end in a chunk that is not full

    def launch():
        output = torch.empty_like(v)
        new_state = v.new_empty(num_seqs, heads, HEAD_SIZE, HEAD_SIZE, dtype=torch.float32)
        sums = v.new_empty(tokens, heads, dtype=torch.float32)
        solution = v.new_empty(tokens, heads, CHUNK, dtype=torch.float32)
        if tokens:
            solve[(most_chunks, heads)](
                k,
                A_log,
                a,
                dt_bias,
                b,
                cu_seqlens,
                sums,
                solution,
                num_seqs,
                GROUP=group,
                SIZE=HEAD_SIZE,
                CHUNK=CHUNK,
                BLOCK=BLOCK,
                SEQUENCES=max(16, triton.next_power_of_2(num_seqs)),
                INTERPRET=interpret,
                num_warps=SOLVE_WARPS,
            )
        scan[(HEAD_SIZE // columns, heads, num_seqs)](
            q,
            k,
            v,
            state,
            cu_seqlens,
            sums,
            solution,
            scale,
            output,
            new_state,
            HAS_STATE=state is not None,
            GROUP=group,
            SIZE=HEAD_SIZE,
            CHUNK=CHUNK,
            COLUMNS=columns,
            INTERPRET=interpret,
            num_warps=warps,
            num_stages=stages,
        )
        return output, new_state

    return launch
