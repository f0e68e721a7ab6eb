"""SGLang 0.5.23's decode attention over an FP8 window cache and an FP4 compressed cache. Needs sm_100.

Engine call: `DeepseekV4AttnBackend._forward_attention` -> `flash_mla_with_kvcache` of
`sglang.kernels.ops.attention.flash_mla_interface` with `extra_k_cache` and `use_legacy=True` (KV layout
`v41`).
Boundary: the whole definition. Adaptations: a query axis of length 1 is added and removed; pages get the axis
of their one latent head. The schedule is made anew in each call, because lengths may have changed.

Not runnable on sm_90: `select_dsv4_kv_layout` refuses the V4.1 layout there, and FlashMLA's sparse decode
kernels for sm_90 exist only for the V3.2, V3.2-without-RoPE and V4 formats, not for pages of 528 and 288
bytes per slot. So `prepare` raises RuntimeError before sm_100; run on an H200 it did for every captured
workload. The call for sm_100 is written after the engine's source; not run here.
"""

import torch

REASON = "no sm_90 kernel reads the V4.1 page formats (528 and 288 bytes a slot): this call needs sm_100"


def run(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    """Return output: bfloat16 [B, 64, 512]. Inputs as in the definition. RuntimeError before sm_100."""
    return prepare(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale)()


def prepare(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    if torch.cuda.get_device_capability(q.device)[0] < 10:
        raise RuntimeError(REASON)
    from sglang.kernels.ops.attention.flash_mla_interface import flash_mla_with_kvcache, get_mla_metadata

    def launch():
        output, _ = flash_mla_with_kvcache(
            q=q[:, None],
            k_cache=kv8_pages[:, :, None],
            block_table=None,
            cache_seqlens=None,
            head_dim_v=q.shape[2],
            tile_scheduler_metadata=get_mla_metadata()[0],
            softmax_scale=sm_scale,
            is_fp8_kvcache=True,
            indices=indices8[:, None],
            topk_length=length8,
            attn_sink=attn_sink,
            extra_k_cache=kv4_pages[:, :, None],
            extra_indices_in_kvcache=indices4[:, None],
            extra_topk_length=length4,
            use_legacy=True,
        )
        return output[:, 0]

    return launch
