"""Toy classes that make the calls of the engine's LTX-2.5 transformer and diffusion decoder.

Class names are those of the engine, as the hooks put them into call paths.
"""

import torch
from torch import nn
from torch.backends import cuda
from torch.nn.functional import scaled_dot_product_attention

from helpers.toy_image_engine import FakeRecorder
from inference_kernels.models.ltx.spec import ATTENTIONS, LTX_LAYERS, STAGES

HEADS = 32


class SDPAImpl:
    def __init__(self):
        self.allow_cudnn_sdp = True


class AttentionLayer(nn.Module):
    """seen: per call whether cuDNN was asked for, and which SDPA backends were allowed."""

    seen: list = []

    def __init__(self, implementation=SDPAImpl):
        super().__init__()
        self.attn_impl, self.allow_cudnn_sdp = implementation(), True

    def forward(self, q, k, v, attn_mask=None, **kwargs):
        self.seen.append(
            (self.allow_cudnn_sdp, self.attn_impl.allow_cudnn_sdp, cuda.math_sdp_enabled(), cuda.flash_sdp_enabled())
        )
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return scaled_dot_product_attention(q, k, v).transpose(1, 2)


class LocalAttention(AttentionLayer):
    pass


class USPAttention(AttentionLayer):
    pass


class LTX2Attention(nn.Module):
    def __init__(self, name, implementation):
        super().__init__()
        owner = LocalAttention if name.endswith("attn2") else USPAttention
        self.attn = owner(implementation)


class Transformer(nn.Module):
    def __init__(self, blocks=2, implementation=SDPAImpl):
        super().__init__()
        self.transformer_blocks = nn.ModuleList(
            [nn.ModuleDict({name: LTX2Attention(name, implementation) for name in ATTENTIONS}) for _ in range(blocks)]
        )

    def attention(self, name, block=0):
        return self.transformer_blocks[block][name].attn


class LTX2VideoVaeNeighborhoodAttention(nn.Module):
    """The toy's kernel returns the values; `reused` buffers are cleared after the call."""

    def __init__(self, definition):
        super().__init__()
        self.heads = int(definition.split("_h")[1].split("_")[0])
        self.kernel_size = tuple(map(int, definition.rsplit("_w", 1)[1].split("x")))
        self.to_out = nn.ModuleList([nn.Identity()])

    def project_qkv(self, hidden_states):
        shape = (*hidden_states.shape[:4], self.heads, 64)
        return tuple((hidden_states + shift).reshape(shape) for shift in range(3))

    def forward(self, hidden_states):
        q, k, v = self.project_qkv(hidden_states)
        joined = v.reshape(hidden_states.shape).clone()
        output = self.to_out[0](joined).clone()
        for buffer in (q, k, v, joined):
            buffer.zero_()
        return output


class Decoder(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.decoder, self.depth = nn.Module(), depth
        stages = [nn.ModuleList([self.block(STAGES[name]) for _ in range(depth)]) for name in STAGES]
        self.decoder.det_stages, self.decoder.diff_blocks = nn.ModuleList(stages[:-1]), stages[-1]

    @staticmethod
    def block(definition):
        block = nn.Module()
        block.attn = LTX2VideoVaeNeighborhoodAttention(definition)
        return block

    def forward(self, grid):
        """Run every stage on a small grid; the hidden states of a stage are its number."""
        outputs = {}
        for number, name in enumerate(STAGES):
            for block in self.decoder.get_submodule(name):
                width = block.attn.heads * 64
                outputs[name] = block.attn(torch.full((1, *grid, width), float(number)).bfloat16())
        return outputs


def recorder(**changes):
    found = FakeRecorder(
        **{"layers": list(LTX_LAYERS), "attention_steps": [1], "sdpa_backends": {"video": "math", "audio": "math"}}
        | changes
    )
    found.settings["definitions"] = list(set(LTX_LAYERS.values()))
    return found


def qkv(definition, queries=5, keys=7):
    shape = (HEADS, int(definition.rsplit("_d", 1)[1]))
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(1, rows, *shape, generator=generator).bfloat16() for rows in (queries, keys, keys))
