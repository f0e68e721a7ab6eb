"""Toy classes that make the calls of the engine's image transformer, and a recorder that keeps its calls.

Class names are those of the engine, as the hooks put them into call paths.
"""

from types import SimpleNamespace

import torch
from torch import nn

from inference_kernels.models.image.spec import CACHED_PREFIX, EMPTY_PREFIX, GEMM_LAYERS

HEADS, DIM, WIDTH = 32, 128, 64


class FakeRecorder:
    """Keeps what the real recorder would write."""

    def __init__(self, **changes):
        selection = {"block": 0, "layers": list(GEMM_LAYERS), "attention_steps": [0, 1], "gemm_steps": [0, 1]}
        self.settings = {
            "selection": selection | changes,
            "seed": 42,
            "definitions": [EMPTY_PREFIX, CACHED_PREFIX, *GEMM_LAYERS.values()],
        }
        self.counts, self.calls, self.errors = {}, [], []

    def observe(self, definition):
        self.counts[definition] = self.counts.get(definition, 0) + 1

    def record(self, definition, inputs, outputs, **more):
        self.calls.append(SimpleNamespace(definition=definition, inputs=inputs, outputs=outputs, **more))

    def report_error(self, where, error):
        self.errors.append(str(error))

    def of(self, definition):
        return [call for call in self.calls if call.definition == definition]


class LocalAttention(nn.Module):
    """buffers: a dictionary if results of one shape share memory, as with a static output buffer."""

    attn_impl, buffers = SimpleNamespace(), None

    def forward(self, q, k, v, attn_mask=None):
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask).transpose(1, 2)
        return out if self.buffers is None else self.buffers.setdefault(out.shape, out).copy_(out)


class USPAttention(LocalAttention):
    def forward_with_replicated_kv_prefix(self, q, k_prefix, v_prefix, k, v):
        return self.forward(q, torch.cat([k_prefix, k], 1), torch.cat([v_prefix, v], 1))


class Linear(nn.Module):
    quant_method = SimpleNamespace()

    def __init__(self, rows, columns):
        super().__init__()
        values = (torch.arange(rows * columns) % 13 - 6).reshape(rows, columns)
        self.weight = nn.Parameter(values.bfloat16() / 16)

    def forward(self, x):
        return nn.functional.linear(x, self.weight), None


class Attention(nn.Module):
    """The engine's order of calls. packed: target keys and values joined. direct: `.forward()` calls.

    grows: the call leaves longer tensors in the cache.
    """

    packed = direct = grows = False
    break_mask = staticmethod(lambda mask, is_image: mask)

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (Linear(WIDTH, WIDTH) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(WIDTH, WIDTH)])
        self.local_attn, self.target_attn = LocalAttention(), USPAttention()

    def attend_sample(self, q, k, v, rope, prefix, layout, cache, k_out=None):
        if not cache:
            for start, end, is_image in layout["segments"]:
                causal = torch.arange(end)[None] <= torch.arange(start, end)[:, None]
                mask = None if is_image else causal[None, None]
                local = self.local_attn.forward if self.direct else self.local_attn
                qp, kp, vp = prefix
                local(qp[:, start:end], kp[:, :end], vp[:, :end], attn_mask=self.break_mask(mask, is_image))
            cache.update(key=prefix[1], value=prefix[2])
        kp, vp = cache["key"], cache["value"]
        if self.grows:
            cache.update(key=torch.cat([kp, k], 1), value=torch.cat([vp, v], 1))
        if self.packed:
            return self.target_attn(q, torch.cat([kp, k], 1), torch.cat([vp, v], 1)), None
        return self.target_attn.forward_with_replicated_kv_prefix(q, kp, vp, k, v), None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.img_mlp = Attention(), nn.Module()
        self.img_mlp.gate_layer, self.img_mlp.proj = Linear(2 * WIDTH, WIDTH), Linear(2 * WIDTH, WIDTH)
        self.img_mlp.out = Linear(WIDTH, 2 * WIDTH)


def qkv(rows, seed, packed=False):
    """Return deterministic q, k, v [1, rows, 32, 128]; packed: column views of one buffer, as when fused."""
    angles = torch.arange(rows * 3 * HEADS * DIM, dtype=torch.float32) * 0.7 + seed
    buffer = torch.sin(angles).bfloat16().reshape(1, rows, 3, HEADS, DIM)
    parts = [buffer[:, :, index] for index in range(3)]
    return parts if packed else [part.contiguous() for part in parts]
