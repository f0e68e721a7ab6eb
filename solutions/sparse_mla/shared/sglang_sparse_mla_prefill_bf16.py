"""SGLang 0.5.23's sparse prefill attention: FlashMLA behind the engine's own function, statistics included.

Engine call: `DeepseekV4AttnBackend._forward_prefill_sparse` -> `flash_mla_sparse_fwd(q=, kv=, indices=,
sm_scale=, d_v=512, attn_sink=, topk_length=)` of `sglang.kernels.ops.attention.flash_mla_interface`, which
takes the legacy kernel of sgl-flash-mla on sm_90 and on sm_100 (the latter not run here). Boundary: the whole
definition.
Adaptation: item 0 of the result; the engine drops the statistics as well.

Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""


def run(q, kv, indices, topk_length, attn_sink, sm_scale):
    """Return output: bfloat16 [S, 64, 512]. Inputs as in the definition."""
    return prepare(q, kv, indices, topk_length, attn_sink, sm_scale)()


def prepare(q, kv, indices, topk_length, attn_sink, sm_scale):
    from sglang.kernels.ops.attention.flash_mla_interface import flash_mla_sparse_fwd

    def launch():
        return flash_mla_sparse_fwd(
            q=q, kv=kv, indices=indices, sm_scale=sm_scale, d_v=512, attn_sink=attn_sink, topk_length=topk_length
        )[0]

    return launch
