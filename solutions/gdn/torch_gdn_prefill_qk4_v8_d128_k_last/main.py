"""Gated delta rule over packed sequences in plain PyTorch: every sequence advances one token at a time, all
together.

Boundary: the whole definition, gates included, float32 throughout. All sequences and heads share each step,
which is a few small operations; the number of steps is a size known on the host (all tokens), so a launch can
be captured, and steps past the end of a sequence change nothing. Meant for short workloads. Run on CPU and on
an H200 (torch 2.14.1): passes its starter workloads; not judged on the larger captured ones.
"""

import math

import torch
from torch.nn.functional import softplus


def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    tokens, value_heads, value_dim = v.shape
    group, num_seqs = value_heads // k.shape[1], cu_seqlens.shape[0] - 1
    scale = float(scale or 1.0 / math.sqrt(k.shape[2]))

    def launch():
        starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
        queries, keys = (x.float().repeat_interleave(group, dim=1) for x in (q, k))
        values, beta = v.float(), torch.sigmoid(b.float())
        decay = torch.exp(-A_log.exp() * softplus(a.float() + dt_bias))
        shape = (num_seqs, value_heads, value_dim, k.shape[2])
        current = v.new_zeros(shape, dtype=torch.float32) if state is None else state
        current = current * (starts < ends)[:, None, None, None]
        output = v.new_zeros(tokens + 1, *v.shape[1:])  # absent tokens are written to the row past the end
        for step in range(tokens):
            row = starts + step
            inside = row < ends
            row = torch.where(inside, row, tokens - 1)
            here = inside[:, None].float()
            faded = torch.where(inside[:, None], decay[row], 1.0)[..., None, None] * current
            key = keys[row]
            delta = here * beta[row]
            delta = delta[..., None] * (values[row] - (faded * key[..., None, :]).sum(-1))
            current = faded + delta[..., :, None] * key[..., None, :]
            result = scale * (current * queries[row][..., None, :]).sum(-1)
            output.index_copy_(0, torch.where(inside, row, tokens), result.to(v.dtype))
        return output[:tokens].contiguous(), current

    return launch
