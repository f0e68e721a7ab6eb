"""FlashMLA's sparse prefill kernel (sgl-flash-mla 1.0.0), the BF16 kernel with a shared latent key and value.

Library call: `flash_mla.flash_mla_sparse_fwd(..., use_legacy=True, return_log2_lse=False)` on sm_90, where
only the legacy kernel set exists; `use_legacy=False`, the current kernel, on sm_100 (by its interface, not
run here).
Boundary: the whole definition. Adaptation: none; the statistics are not asked for.

Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import torch


def run(q, kv, indices, topk_length, attn_sink, sm_scale):
    """Return output: bfloat16 [S, 64, 512]. Inputs as in the definition."""
    return prepare(q, kv, indices, topk_length, attn_sink, sm_scale)()


def prepare(q, kv, indices, topk_length, attn_sink, sm_scale):
    from flash_mla import flash_mla_sparse_fwd

    legacy = torch.cuda.get_device_capability(q.device)[0] < 10

    def launch():
        return flash_mla_sparse_fwd(
            q,
            kv,
            indices,
            sm_scale,
            d_v=q.shape[2],
            attn_sink=attn_sink,
            topk_length=topk_length,
            use_legacy=legacy,
            return_log2_lse=False,
        )[0]

    return launch
