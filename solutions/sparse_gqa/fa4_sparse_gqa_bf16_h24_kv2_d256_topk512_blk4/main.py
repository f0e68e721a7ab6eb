"""FlashAttention-4 4.0.0b35 (`flash_attn.cute.interface.flash_attn_varlen_func`) over gathered keys and
values.

Boundary: the whole definition. A row becomes a sequence of one query and at most 2051 keys, gathered in
PyTorch into packed buffers with the visible tokens in front; the lengths give cu_seqlens_k. The gather writes
4.2 MB per row, so rows are taken in groups. sm_90 and sm_100 share this call; sm_100: not run here.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones. With values of
standard deviation 5 rows of few keys missed the bound.
"""

import torch
from flash_attn.cute.interface import flash_attn_varlen_func

BLOCK_SIZE = 4
ROWS = 256


def run(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    """Return output bfloat16 [num_tokens, 24, 256]. Inputs as in the definition."""
    return prepare(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale)()


def prepare(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    page_size = k_cache.shape[1]
    keys, values = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    width = block_ids.shape[1] * BLOCK_SIZE + BLOCK_SIZE - 1
    offsets = torch.arange(min(ROWS, q.shape[0]) + 1, dtype=torch.int32, device=q.device)

    def launch():
        output = torch.empty_like(q)
        for first in range(0, q.shape[0], ROWS):
            rows = slice(first, first + ROWS)
            tokens = visible_tokens(block_ids[rows], query_pos[rows])
            page = page_table[query_seq[rows].long()].gather(1, tokens.clamp(min=0) // page_size).long()
            slots = torch.where(tokens >= 0, page * page_size + tokens % page_size, 0)
            seen, count = (tokens >= 0), len(tokens)
            lengths = seen.sum(1, dtype=torch.int32)
            cu_k = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
            # Where each seen token goes: behind those of earlier rows; the rest share one slot past the end.
            place = torch.where(seen, cu_k[:-1, None] + seen.cumsum(1) - 1, count * width).flatten()
            source = torch.zeros(count * width + 1, dtype=torch.int64, device=q.device)
            source.scatter_(0, place, slots.flatten())
            result, _ = flash_attn_varlen_func(
                q=q[rows],
                k=keys[source],
                v=values[source],
                cu_seqlens_q=offsets[: count + 1],
                cu_seqlens_k=cu_k,
                max_seqlen_q=1,
                max_seqlen_k=width,
                softmax_scale=float(sm_scale),
                causal=False,
            )
            output[rows] = result
        return output

    return launch


def visible_tokens(block_ids, query_pos):
    """List the token positions a row sees, the tail first: int64 [rows, topk * 4 + 3], negative where none."""
    lane = torch.arange(BLOCK_SIZE, device=block_ids.device)
    seen = query_pos[:, None].long() + 1
    tail = seen // BLOCK_SIZE * BLOCK_SIZE + lane[:-1]
    body = (block_ids[..., None].long() * BLOCK_SIZE + lane).flatten(1)
    return torch.cat([torch.where(tail < seen, tail, -1), body], dim=1)
