"""Gated delta rule over variable-length sequences, state layout k-last [sequence, value head, V, K].

For each token in order, from the sequence's initial state:

    g    = exp(-exp(A_log) * softplus(a + dt_bias))        decay in (0, 1)
    beta = sigmoid(b)                                      write strength in (0, 1)
    S   <- g * S
    S   <- S + beta * (v - S k) k^T
    output = scale * S q

Value head h uses query and key head h // 2. q and k are taken as they are: no L2 normalisation inside.
Sequence i holds rows cu_seqlens[i] .. cu_seqlens[i + 1] - 1. An empty sequence has new_state ZERO, whatever
its initial state: the contest's reference leaves the row unwritten.

Rounding: everything is float32; output is rounded to BF16 once, new_state stays float32. There is no matrix
product, so no TF32 either.
"""

import math

import torch
from torch.nn.functional import softplus

# The largest temporary is one widened operand: at 8192 tokens 8192 * 8 * 128 * 4 B = 32 MiB. A token's step
# works on one state, 8 * 128 * 128 * 4 B = 512 KiB, whatever the number of sequences.


def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    """Return output, new_state.

    q, k        bfloat16 [total_seq_len, 4, 128]
    v           bfloat16 [total_seq_len, 8, 128]
    state       float32  [num_seqs, 8, 128, 128]  [V, K] of each value head; None stands for zeros
    A_log       float32  [8]                      log of the decay rate
    a           bfloat16 [total_seq_len, 8]       decay gate before the bias
    dt_bias     float32  [8]
    b           bfloat16 [total_seq_len, 8]       write gate before the sigmoid
    cu_seqlens  int64    [num_seqs + 1]           first row of each sequence, then total_seq_len
    scale       float32  scalar                   None or 0 stands for 1 / sqrt(128)
    output      bfloat16 [total_seq_len, 8, 128]
    new_state   float32  [num_seqs, 8, 128, 128]
    """
    total_seq_len, value_heads, value_dim = v.shape
    key_dim = k.shape[-1]
    scale = float(scale or 1.0 / math.sqrt(key_dim))
    decay = torch.exp(-torch.exp(A_log.float()) * softplus(a.float() + dt_bias.float()))
    beta = torch.sigmoid(b.float())
    queries, keys, values = spread(q.float(), value_heads), spread(k.float(), value_heads), v.float()

    bounds = cu_seqlens.tolist()
    output = torch.empty_like(v)
    new_state = q.new_zeros(len(bounds) - 1, value_heads, value_dim, key_dim, dtype=torch.float32)
    for sequence, (first, end) in enumerate(zip(bounds, bounds[1:])):
        if first == end:
            continue
        current = new_state[sequence] if state is None else state[sequence].float()
        for t in range(first, end):
            current = advance(current, keys[t], values[t], decay[t], beta[t])
            output[t] = scale * (current * queries[t, :, None, :]).sum(-1)
        new_state[sequence] = current
    return output, new_state


def spread(x, value_heads):
    """[..., heads, K] -> [..., value_heads, K]: each head serves a run of neighbouring value heads."""
    return x.repeat_interleave(value_heads // x.shape[-2], dim=-2)


def advance(state, k, v, decay, beta):
    """The state after one token. state [..., V, K], k [..., K], v [..., V], decay and beta [...]."""
    state = decay[..., None, None] * state
    recalled = (state * k[..., None, :]).sum(-1)
    delta = beta[..., None] * (v - recalled)
    return state + delta[..., :, None] * k[..., None, :]
