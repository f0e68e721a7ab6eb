"""Gated delta rule, one token a sequence, state layout k-last [batch, value head, V, K].

    g    = exp(-exp(A_log) * softplus(a + dt_bias))        decay in (0, 1)
    beta = sigmoid(b)                                      write strength in (0, 1)
    S    = g * state
    new_state = S + beta * (v - S k) k^T
    output    = scale * new_state q

Value head h uses query and key head h // 2. q and k are taken as they are: no L2 normalisation inside.

Rounding: everything is float32; output is rounded to BF16 once, new_state stays float32. There is no matrix
product, so no TF32 either.
"""

import math

import torch
from torch.nn.functional import softplus

# Temporaries have the size of the state: at the largest contest batch 64 * 8 * 128 * 128 * 4 B = 32 MiB.


def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    """Return output, new_state.

    q, k       bfloat16 [batch_size, 1, 4, 128]
    v          bfloat16 [batch_size, 1, 8, 128]
    state      float32  [batch_size, 8, 128, 128]  [V, K] of each value head; None stands for zeros
    A_log      float32  [8]                        log of the decay rate
    a          bfloat16 [batch_size, 1, 8]         decay gate before the bias
    dt_bias    float32  [8]
    b          bfloat16 [batch_size, 1, 8]         write gate before the sigmoid
    scale      float32  scalar                     None or 0 stands for 1 / sqrt(128)
    output     bfloat16 [batch_size, 1, 8, 128]
    new_state  float32  [batch_size, 8, 128, 128]
    """
    batch_size, _, value_heads, value_dim = v.shape
    key_dim = k.shape[-1]
    scale = float(scale or 1.0 / math.sqrt(key_dim))
    if state is None:
        state = q.new_zeros(batch_size, value_heads, value_dim, key_dim, dtype=torch.float32)
    decay = torch.exp(-torch.exp(A_log.float()) * softplus(a[:, 0].float() + dt_bias.float()))
    beta = torch.sigmoid(b[:, 0].float())
    queries, keys = (spread(x[:, 0].float(), value_heads) for x in (q, k))

    new_state = advance(state.float(), keys, v[:, 0].float(), decay, beta)
    output = scale * (new_state * queries[:, :, None, :]).sum(-1)
    return output[:, None].to(v.dtype), new_state


def spread(x, value_heads):
    """[..., heads, K] -> [..., value_heads, K]: each head serves a run of neighbouring value heads."""
    return x.repeat_interleave(value_heads // x.shape[-2], dim=-2)


def advance(state, k, v, decay, beta):
    """The state after one token. state [..., V, K], k [..., K], v [..., V], decay and beta [...]."""
    state = decay[..., None, None] * state
    recalled = (state * k[..., None, :]).sum(-1)
    delta = beta[..., None] * (v - recalled)
    return state + delta[..., :, None] * k[..., None, :]
