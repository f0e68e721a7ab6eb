"""Block-causal attention through FlashAttention 4 (flash-attn-4 4.0.0b35) with a mask function and sparse
blocks.

Boundary: the whole definition. Adaptations: the mask function reads kv_end; which key blocks a query block
skips, sees in full or in part is computed from kv_end on the device in every launch; a batch axis of one.
sm_90: query blocks of 128 rows. sm_100: 256, not run here.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import cutlass
import cutlass.cute as cute
import torch
from flash_attn.cute import utils
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
from flash_attn.cute.interface import flash_attn_func

D = 128
BLOCK_N = 128


@cute.jit
def below_bound(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Tell whether the key is below the bound of the query's row; rows past the end read the last bound."""
    row = cutlass.min(q_idx[0], seqlen_info.seqlen_q - 1)
    return kv_idx < utils.scalar_to_ssa(aux_tensors[0][row], cutlass.Int32)


def sparse_blocks(kv_end, block_m):
    """List the key blocks per query block: full below every row's bound, then masked up to the largest bound."""
    blocks_m, blocks_n = -(-len(kv_end) // block_m), -(-len(kv_end) // BLOCK_N)
    rows = torch.arange(blocks_m * block_m, device=kv_end.device).clamp(max=len(kv_end) - 1)
    low, high = kv_end[rows].view(blocks_m, block_m).aminmax(dim=1)
    full = low // BLOCK_N
    masked = (high + BLOCK_N - 1) // BLOCK_N - full
    columns = torch.arange(blocks_n, dtype=torch.int32, device=kv_end.device)
    masked_index = (full[:, None] + columns).clamp(max=blocks_n - 1)
    full_index = columns.expand(blocks_m, -1).contiguous()
    return BlockSparseTensorsTorch(
        mask_block_cnt=masked[None, None],
        mask_block_idx=masked_index[None, None],
        full_block_cnt=full[None, None],
        full_block_idx=full_index[None, None],
        block_size=(block_m, BLOCK_N),
    )


def run(q, k, v, kv_end):
    """Attend q, k, v bfloat16 [S, H, D] with bounds kv_end int32 [S] -> o bfloat16 [S, H, D]."""
    return prepare(q, k, v, kv_end)()


def prepare(q, k, v, kv_end):
    blackwell = torch.cuda.get_device_capability(q.device)[0] == 10
    block_m = 256 if blackwell and len(q) > 128 else 128

    def launch():
        blocks = sparse_blocks(kv_end, block_m)
        return flash_attn_func(
            q[None],
            k[None],
            v[None],
            softmax_scale=D**-0.5,
            mask_mod=below_bound,
            aux_tensors=[kv_end],
            block_sparse_tensors=blocks,
        )[0][0]

    return launch
