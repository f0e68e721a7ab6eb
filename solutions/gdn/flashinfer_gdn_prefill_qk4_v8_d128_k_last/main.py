"""FlashInfer 0.7.2, `flashinfer.gdn_prefill.chunk_gated_delta_rule`: the baseline of the contest.

Boundary: the whole definition; the gates are computed here, in float32, because the library takes the LINEAR
decay exp(log g) and beta ready-made, and it is told not to normalise q and k. Adaptations: an absent state
becomes zeros; scale 0 becomes 1 / sqrt(128); the rows of new_state of empty sequences are set to zero, as the
definition asks. sm_90: CuTe DSL kernels with BF16 operands inside, so float32 states carry about 0.3 % of
error; sm_100 by the library's documentation only: not run here.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import math

import torch
from flashinfer.gdn_prefill import chunk_gated_delta_rule
from torch.nn.functional import softplus


def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    value_heads, value_dim = v.shape[1:]
    scale = float(scale or 1.0 / math.sqrt(k.shape[2]))
    num_seqs = cu_seqlens.shape[0] - 1

    def launch():
        decay = torch.exp(-A_log.exp() * softplus(a.float() + dt_bias))
        beta = torch.sigmoid(b.float())
        shape = (num_seqs, value_heads, value_dim, k.shape[2])
        before = v.new_zeros(shape, dtype=torch.float32) if state is None else state
        output, new_state = chunk_gated_delta_rule(
            q=q,
            k=k,
            v=v,
            g=decay,
            beta=beta,
            scale=scale,
            initial_state=before,
            output_final_state=True,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=False,
            output=torch.empty_like(v),
            output_state=v.new_empty(shape, dtype=torch.float32),
        )
        empty = cu_seqlens[1:] == cu_seqlens[:-1]
        return output, new_state.masked_fill_(empty[:, None, None, None], 0.0)

    return launch
