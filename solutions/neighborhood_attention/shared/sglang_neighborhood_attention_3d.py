"""SGLang 0.5.23's neighborhood attention of the LTX-2.5 diffusion decoder.

Call path: LTX2VideoVaeNeighborhoodAttention.forward in
sglang.multimodal_gen.runtime.models.decoders.ltx_2_5_diffusion_decoder, between `project_qkv` and `to_out`:
NATTEN's na3d if it is installed, otherwise compiled FlexAttention with the engine's block mask, built once per
grid (in `prepare`, as the decoder does at the start of a stage; its cost is quadratic in the grid).
Boundary: the whole definition. Adaptations: the output contiguous; Inductor compiles in this process, and
tqdm starts no thread, so that nothing outlives the call.
Run with the engine on CPU (FlexAttention; window 3x5x5) and on an H200 (torch 2.14.1): with
NATTEN passes the starter workload, at 32 heads, and the larger captured ones of all four windows; with
FlexAttention right with seeded inputs at 32 and 16 heads.
"""

import torch

from .constants import WINDOW


def run(q, k, v):
    """Attend q, k, v bfloat16 [B, T, Y, X, H, D] -> o bfloat16 of the same shape."""
    return prepare(q, k, v)()


def prepare(q, k, v):
    from sglang.multimodal_gen.runtime.models.decoders import ltx_2_5_diffusion_decoder as decoder

    na3d = decoder._na3d()
    if na3d is not None:
        return lambda: na3d(q, k, v, kernel_size=WINDOW, scale=1.0).contiguous()
    torch._inductor.config.compile_threads = 1
    # torch.fx makes tqdm bars while it traces; the thread that watches them would outlive this call.
    torch.hub.tqdm.monitor_interval = 0
    mask = decoder._neighborhood_block_mask(*q.shape[1:4], WINDOW, q.device)
    attention = decoder._flex_attention_fn()
    heads_first = [x.flatten(1, 3).transpose(1, 2) for x in (q, k, v)]

    def launch():
        o = attention(*heads_first, block_mask=mask, scale=1.0)
        return o.transpose(1, 2).reshape(q.shape)

    return launch
