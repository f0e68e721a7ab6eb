"""SGLang 0.5.23's default decode kernel of gated delta layers,
`fused_recurrent_gated_delta_rule_packed_decode`.

Engine call: `TritonGDNKernel.packed_decode`, below `GDNAttnBackend.forward_decode`. Boundary: the whole
definition. Adaptations: q, k and v are packed into one row per sequence, as the engine's convolution leaves
them; the state pool is a copy of `state`, because the kernel updates it in place; normalisation of q and k,
which the engine switches on, is off. The kernel rounds beta to BF16, which the reference does not.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import math

import torch
from sglang.kernels.ops.attention.fla.fused_recurrent import fused_recurrent_gated_delta_rule_packed_decode


def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    """Return (output bfloat16, new_state float32). Inputs as in the definition; state and scale may be None."""
    return prepare(q, k, v, state, A_log, a, dt_bias, b, scale)()


def prepare(q, k, v, state, A_log, a, dt_bias, b, scale):
    batch_size, _, value_heads, value_dim = v.shape
    scale = float(scale or 1.0 / math.sqrt(k.shape[3]))
    slots = torch.arange(batch_size, dtype=torch.int32, device=q.device)

    def launch():
        if state is None:
            pool = v.new_zeros(batch_size, value_heads, value_dim, k.shape[3], dtype=torch.float32)
        else:
            pool = state.clone()
        packed = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
        output = torch.empty_like(v)
        fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=packed,
            a=a[:, 0],
            b=b[:, 0],
            A_log=A_log,
            dt_bias=dt_bias,
            scale=scale,
            initial_state=pool,
            out=output,
            ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=False,
        )
        return output, pool

    return launch
