"""Gated delta rule, one token a sequence, from raw operands, state layout [batch, value head, K, V].

    qn, kn = q / sqrt(sum q^2 + 1e-6), k / sqrt(sum k^2 + 1e-6)
    g      = exp(-exp(A_log) * softplus(a + dt_bias))      decay in (0, 1)
    beta   = sigmoid(b)                                    write strength in (0, 1)
    S      = g * state
    new_state = S + kn (beta * (v - S^T kn))^T
    output    = scale * new_state^T qn

Value head h uses query and key head h // 3.

Rounding: everything is float32, beta too (one engine kernel rounds beta to BF16; this reference does not);
output is rounded to BF16 once, new_state stays float32. There is no matrix product, so no TF32 either.
"""

import torch
from torch.nn.functional import softplus

EPSILON = 1e-6

# Temporaries have the size of the state: at a batch of 64, 64 * 48 * 128 * 128 * 4 B = 192 MiB each.


def run(q, k, v, a, b, A_log, dt_bias, state, scale):
    """Return output, new_state.

    q, k       bfloat16 [batch_size, 16, 128]        raw, normalised here
    v          bfloat16 [batch_size, 48, 128]
    a          bfloat16 [batch_size, 48]             decay gate before the bias
    b          bfloat16 [batch_size, 48]             write gate before the sigmoid
    A_log      float32  [48]                         log of the decay rate
    dt_bias    float32  [48]
    state      float32  [batch_size, 48, 128, 128]   [K, V] of each value head
    scale      float32  scalar
    output     bfloat16 [batch_size, 48, 128]
    new_state  float32  [batch_size, 48, 128, 128]
    """
    value_heads = v.shape[1]
    decay = torch.exp(-torch.exp(A_log) * softplus(a.float() + dt_bias))
    beta = torch.sigmoid(b.float())
    queries, keys = (spread(normalised(x.float()), value_heads) for x in (q, k))

    new_state = advance(state, keys, v.float(), decay, beta)
    output = scale * (new_state * queries[:, :, :, None]).sum(-2)
    return output.to(v.dtype), new_state


def normalised(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + EPSILON)


def spread(x, value_heads):
    """[..., heads, K] -> [..., value_heads, K]: each head serves a run of neighbouring value heads."""
    return x.repeat_interleave(value_heads // x.shape[-2], dim=-2)


def advance(state, k, v, decay, beta):
    """The state after one token. state [..., K, V], k [..., K], v [..., V], decay and beta [...]."""
    state = decay[..., None, None] * state
    recalled = (state * k[..., :, None]).sum(-2)
    delta = beta[..., None] * (v - recalled)
    return state + k[..., :, None] * delta[..., None, :]
