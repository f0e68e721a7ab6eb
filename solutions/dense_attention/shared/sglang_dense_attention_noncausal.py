"""SGLang 0.5.23's attention layer of the LTX-2.5 transformer.

Call path: LTX2Attention.forward -> its `attn` (USPAttention or LocalAttention) -> the forward of a backend of
sglang.multimodal_gen.runtime.layers.attention.backends. Boundary: that forward; the mask, which hides nothing
in the captured calls, is left out. The backend is the engine's default for the device: FlashAttention 3 on
sm_90, on sm_100 cuDNN with FlashAttention 4 behind it, elsewhere PyTorch's SDPA; SDPA also where the engine's
kernel package holds no FlashAttention 3, as with `--attention-backend torch_sdpa`.
Adaptations: none but a contiguous output.
Run with the engine on CPU (its SDPA) and on an H200 (torch 2.14.1): passes its starter workloads and the
larger captured ones. Not run on sm_100.
"""

import importlib.util

import torch

from .constants import D

H = 32


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


def run(q, k, v):
    """Attend q bfloat16 [B, Nq, H, D] and k, v bfloat16 [B, Nk, H, D] -> o bfloat16 [B, Nq, H, D]."""
    return prepare(q, k, v)()


def prepare(q, k, v):
    backend = attention_backend(q.device)

    def launch():
        return backend.forward(q, k, v, None).contiguous()

    return launch
