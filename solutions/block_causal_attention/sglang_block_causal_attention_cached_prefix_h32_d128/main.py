"""SGLang 0.5.23's attention of the target image over a cached prefix (Qwen-Image-2.1).

Call path: QwenImage21Attention.attend_sample -> USPAttention.forward_with_replicated_kv_prefix on one GPU:
prefix and own keys and values are joined, then the forward of a backend of
sglang.multimodal_gen.runtime.layers.attention.backends. Boundary: that method. The backend is the engine's
default for the device: FlashAttention 3 on sm_90, on sm_100 cuDNN with FlashAttention 4 behind it, elsewhere
PyTorch's SDPA; SDPA also where the engine's kernel package holds no FlashAttention 3, as with
`--attention-backend torch_sdpa`.
Adaptations: a batch axis of one, the output contiguous. On CUDA the engine can pack the keys while it rotates
them, so that the joining here is more than it pays.
Run with the engine on CPU (its SDPA) and on an H200 (torch 2.14.1): passes its starter workloads and the
larger captured ones. Not run on sm_100.
"""

import importlib.util

import torch

H = 32
D = 128


def attention_backend(device):
    """Choose the engine's attention for this device: an object with forward(query, key, value, attn_metadata)."""
    from sglang.multimodal_gen.runtime.layers.attention.backends import flash_attn, sdpa

    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
    options = {"num_heads": H, "head_size": D, "causal": False, "softmax_scale": D**-0.5}
    if major == 10:
        return sdpa.DynamicCudnnSDPAImpl(**options, allow_cudnn_sdp=True)
    if major == 9 and importlib.util.find_spec("sgl_kernel.flash_ops"):
        return flash_attn.FlashAttentionImpl(**options)
    return sdpa.SDPAImpl(**options, allow_cudnn_sdp=True)


def run(q, k_prefix, v_prefix, k, v):
    """Attend q, k, v bfloat16 [T, H, D] and k_prefix, v_prefix bfloat16 [P, H, D] -> o bfloat16 [T, H, D]."""
    return prepare(q, k_prefix, v_prefix, k, v)()


def prepare(q, k_prefix, v_prefix, k, v):
    backend = attention_backend(q.device)

    def launch():
        keys, values = torch.cat((k_prefix, k))[None], torch.cat((v_prefix, v))[None]
        return backend.forward(q[None], keys, values, None)[0].contiguous()

    return launch
