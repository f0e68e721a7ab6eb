"""One token of the gated delta rule in one Triton kernel: a program reads, updates and writes a slice of one
state.

Boundary: the whole definition, gates included, float32 throughout. The state is read once and written once,
which is all the memory traffic there is. Needs torch and Triton alone.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import math

import torch
import triton
import triton.language as tl

HEAD_SIZE = 128
# Batch below which each row of the table applies -> value rows per program, warps. Small batches spread one
# state over more programs. Not chosen by a sweep.
CONFIGURATIONS = ((4, 8, 1), (16, 16, 2), (1 << 30, 32, 4))


@triton.jit
def step(
    q, k, v, state, A_log, a, dt_bias, b, scale,
    output, new_state,  # written
    HAS_STATE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Program (slice of ROWS value rows, value head, sequence); pointers to the definition's tensors."""
    head, heads = tl.program_id(1), tl.num_programs(1)
    sequence = tl.program_id(2)
    unit = sequence * heads + head
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, SIZE)
    cell = unit.to(tl.int64) * SIZE * SIZE + rows[:, None] * SIZE + columns[None, :]
    if HAS_STATE:
        current = tl.load(state + cell)
    else:
        current = tl.zeros([ROWS, SIZE], tl.float32)

    shared_head = unit // GROUP
    key = tl.load(k + shared_head * SIZE + columns).to(tl.float32)
    query = tl.load(q + shared_head * SIZE + columns).to(tl.float32)
    value = tl.load(v + unit * SIZE + rows).to(tl.float32)
    gate = tl.load(a + unit).to(tl.float32) + tl.load(dt_bias + head)
    softplus = tl.maximum(gate, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(gate)))
    decay = tl.exp(-tl.exp(tl.load(A_log + head)) * softplus)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b + unit).to(tl.float32)))

    current *= decay
    delta = beta * (value - tl.sum(current * key[None, :], axis=1))
    current += delta[:, None] * key[None, :]
    tl.store(new_state + cell, current)
    result = scale * tl.sum(current * query[None, :], axis=1)
    tl.store(output + unit * SIZE + rows, result.to(output.dtype.element_ty))


def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, scale):
    batch_size, _, value_heads, _ = v.shape
    scale = float(scale or 1.0 / math.sqrt(HEAD_SIZE))
    rows, warps = next(choice[1:] for choice in CONFIGURATIONS if batch_size < choice[0])
    if v.device.type == "cpu":
        rows = HEAD_SIZE  # the interpreter takes time per program
    grid = (HEAD_SIZE // rows, value_heads, batch_size)

    def launch():
        output = torch.empty_like(v)
        new_state = v.new_empty(batch_size, value_heads, HEAD_SIZE, HEAD_SIZE, dtype=torch.float32)
        if batch_size:
            step[grid](
                q,
                k,
                v,
                state,
                A_log,
                a,
                dt_bias,
                b,
                scale,
                output,
                new_state,
                ROWS=rows,
                HAS_STATE=state is not None,
                GROUP=value_heads // q.shape[2],
                SIZE=HEAD_SIZE,
                num_warps=warps,
            )
        return output, new_state

    return launch
