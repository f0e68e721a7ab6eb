"""Attention over cached and own keys through FlashAttention 4 (flash-attn-4 4.0.0b35).

Boundary: the whole definition. Adaptations: prefix and own keys and values are joined in every launch; a
batch axis of one. The same call serves sm_90 and sm_100; the sm_100 path is not run here.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import torch
from flash_attn.cute.interface import flash_attn_func

D = 128


def run(q, k_prefix, v_prefix, k, v):
    """Attend q, k, v bfloat16 [T, H, D] and k_prefix, v_prefix bfloat16 [P, H, D] -> o bfloat16 [T, H, D]."""
    return prepare(q, k_prefix, v_prefix, k, v)()


def prepare(q, k_prefix, v_prefix, k, v):
    def launch():
        keys, values = torch.cat((k_prefix, k))[None], torch.cat((v_prefix, v))[None]
        return flash_attn_func(q[None], keys, values, softmax_scale=D**-0.5)[0][0]

    return launch
