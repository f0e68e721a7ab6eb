"""One token of the gated delta rule in plain PyTorch, as two batched matrix-vector products.

Boundary: the whole definition, gates included, float32 throughout. Run on CPU and on an H200 (torch 2.14.1):
passes its starter workloads and the larger captured ones.
"""

import math

import torch
from torch.nn.functional import softplus


def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, scale):
    value_heads, key_dim = v.shape[2], k.shape[3]
    group = value_heads // k.shape[2]
    scale = float(scale or 1.0 / math.sqrt(key_dim))

    def launch():
        query, key = (x[:, 0].float().repeat_interleave(group, dim=1) for x in (q, k))
        decay = torch.exp(-A_log.exp() * softplus(a[:, 0].float() + dt_bias))
        beta = torch.sigmoid(b[:, 0].float())
        value = v[:, 0].float()
        if state is None:
            delta = beta[..., None] * value
            new_state = delta[..., :, None] * key[..., None, :]
        else:
            new_state = decay[..., None, None] * state
            delta = beta[..., None] * (value - (new_state * key[..., None, :]).sum(-1))
            new_state.addcmul_(delta[..., :, None], key[..., None, :])
        output = scale * (new_state * query[..., None, :]).sum(-1)
        return output[:, None].to(v.dtype), new_state

    return launch
