"""Neighborhood attention through NATTEN 0.21.7.

Boundary: the whole definition. Adaptations: none; NATTEN takes this layout, and scale=1.0 because q is scaled
already.
sm_90 uses its Hopper kernels (tiles of 4x4x4 queries and 4x4x8 keys, among those it offers for head size 64),
sm_100 its Blackwell kernels, other devices what NATTEN picks; neither is run here.
Run on an H200 (torch 2.14.1) with a build of NATTEN's Hopper kernels for this head size alone
(benchmarks/natten_build.py): passes the starter workload, at 32 heads, and the larger captured ones of all four
windows.
"""

import torch
from natten.functional import na3d

from .constants import WINDOW

HOPPER = {"backend": "hopper-fna", "q_tile_shape": (4, 4, 4), "kv_tile_shape": (4, 4, 8)}
BLACKWELL = {"backend": "blackwell-fna"}


def run(q, k, v):
    """Attend q, k, v bfloat16 [B, T, Y, X, H, D] -> o bfloat16 of the same shape."""
    return prepare(q, k, v)()


def prepare(q, k, v):
    major = torch.cuda.get_device_capability(q.device)[0] if q.is_cuda else 0
    options = {9: HOPPER, 10: BLACKWELL}.get(major, {})

    def launch():
        return na3d(q, k, v, kernel_size=WINDOW, scale=1.0, **options).contiguous()

    return launch
