"""Attention of the target rows over cached and own keys through torch's scaled_dot_product_attention.

Boundary: the whole definition. Adaptations: prefix and own keys and values are joined in every call; heads
before rows for the call, and back. Run on CPU and on an H200 (torch 2.14.1): passes its starter workloads and
the larger captured ones.
"""

import torch


def run(q, k_prefix, v_prefix, k, v):
    """Attend q, k, v bfloat16 [T, H, D] and k_prefix, v_prefix bfloat16 [P, H, D] -> o bfloat16 [T, H, D]."""
    return prepare(q, k_prefix, v_prefix, k, v)()


def prepare(q, k_prefix, v_prefix, k, v):
    def launch():
        joined = torch.cat((k_prefix, k)), torch.cat((v_prefix, v))
        heads_first = [x.transpose(0, 1)[None] for x in (q, *joined)]
        o = torch.nn.functional.scaled_dot_product_attention(*heads_first)
        return o[0].transpose(0, 1).contiguous()

    return launch
