"""SGLang 0.5.23's attention of the first denoising step (Qwen-Image-2.1): one call per segment.

Call path: QwenImage21Attention.attend_sample with an empty cache: for each segment of the prefix
LocalAttention.forward over the keys up to its end (text: PyTorch's SDPA with an additive causal mask; image:
the backend, unmasked), then the backend for the target over all keys. The backend, of
sglang.multimodal_gen.runtime.layers.attention.backends, is the engine's default for the device:
FlashAttention 3 on sm_90, on sm_100 cuDNN with FlashAttention 4 behind it, elsewhere PyTorch's SDPA; SDPA also
where the engine's kernel package holds no FlashAttention 3, as with `--attention-backend torch_sdpa`.
Boundary: the whole definition. Adaptations: the engine gets its segments as Python numbers from the request's
layout; here `prepare` recovers them from kv_end once, so a prepared launch holds for this layout alone. The
masks are made in every launch, as in the engine; segment outputs are joined.
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


def segments_of(kv_end):
    """List (start, end, is text) in order: text rows see up to themselves, the rows of a block up to its end."""
    ends, found, start = kv_end.tolist(), [], 0
    while start < len(ends):
        is_text, end = ends[start] == start + 1, ends[start]
        while is_text and end < len(ends) and ends[end] == end + 1:
            end += 1
        found.append((start, end, is_text))
        start = end
    return found


def text_attention(q, k, v):
    """Attend causally from the last rows of k to all of k: [1, n, H, D] -> [1, n, H, D]."""
    from sglang.multimodal_gen.runtime.layers.attention.layer import prepare_sdpa_mask

    end = k.shape[1]
    rows = torch.arange(end - q.shape[1], end, device=q.device)
    visible = torch.arange(end, device=q.device) <= rows[:, None]
    mask = prepare_sdpa_mask(visible[None, None], dtype=q.dtype, device=q.device)
    o = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, scale=D**-0.5
    )
    return o.transpose(1, 2)


def run(q, k, v, kv_end):
    """Attend q, k, v bfloat16 [S, H, D] with bounds kv_end int32 [S] -> o bfloat16 [S, H, D]."""
    return prepare(q, k, v, kv_end)()


def prepare(q, k, v, kv_end):
    backend, segments = attention_backend(q.device), segments_of(kv_end)
    q, k, v = q[None], k[None], v[None]

    def attend(start, end, is_text):
        parts = q[:, start:end], k[:, :end], v[:, :end]
        return text_attention(*parts) if is_text else backend.forward(*parts, None)

    def launch():
        return torch.cat([attend(*segment) for segment in segments], dim=1)[0].contiguous()

    return launch
