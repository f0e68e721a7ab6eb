"""FlashInfer 0.7.2, `flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose`: the baseline of the
contest.

Boundary: the whole definition; the library computes the gates itself and is told not to normalise q and k.
Adaptations: the library updates the state in place, so each launch hands it a copy; an absent state becomes
zeros; scale 0 becomes 1 / sqrt(128). The float32-state path of the library needs sm_90 or newer and is CuTe
DSL; sm_100 by the library's documentation only: not run here.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import math

import torch
from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose


def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, scale):
    batch_size, _, value_heads, value_dim = v.shape
    scale = float(scale or 1.0 / math.sqrt(k.shape[3]))

    def launch():
        if state is None:
            current = v.new_zeros(batch_size, value_heads, value_dim, k.shape[3], dtype=torch.float32)
        else:
            current = state.clone()
        return gated_delta_rule_decode_pretranspose(
            q=q,
            k=k,
            v=v,
            state=current,
            A_log=A_log,
            a=a,
            dt_bias=dt_bias,
            b=b,
            scale=scale,
            output=torch.empty_like(v),
            use_qk_l2norm=False,
        )

    return launch
