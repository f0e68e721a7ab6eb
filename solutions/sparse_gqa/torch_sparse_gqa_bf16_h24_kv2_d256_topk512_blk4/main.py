"""Sparse grouped-query attention in plain PyTorch: gather the visible tokens, then two batched products.

Boundary: the whole definition, float32 inside. Rows are attended in groups, so that a group's gathered keys
stay small. Run on CPU and on an H200 (torch 2.14.1): passes its starter workloads and the larger captured
ones.
"""

import math

import torch

BLOCK_SIZE = 4
ROWS = 32


def run(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    """Return output bfloat16 [num_tokens, 24, 256]. Inputs as in the definition."""
    return prepare(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale)()


def prepare(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    lane = torch.arange(BLOCK_SIZE, device=q.device)
    page_size, kv_heads, size = k_cache.shape[1:]
    keys, values = k_cache.view(-1, kv_heads, size), v_cache.view(-1, kv_heads, size)

    def launch():
        output = torch.empty_like(q)
        for first in range(0, q.shape[0], ROWS):
            rows = slice(first, first + ROWS)
            seen = query_pos[rows, None].long() + 1
            tail = seen // BLOCK_SIZE * BLOCK_SIZE + lane[:-1]
            body = (block_ids[rows, :, None].long() * BLOCK_SIZE + lane).flatten(1)
            tokens = torch.cat([torch.where(tail < seen, tail, -1), body], dim=1)
            hidden = tokens < 0
            tokens = tokens.clamp(min=0)
            page = page_table[query_seq[rows].long()].long().gather(1, tokens // page_size).clamp(min=0)
            slots = page * page_size + tokens % page_size
            queries = q[rows].float().unflatten(1, (kv_heads, -1)) * sm_scale
            scores = torch.einsum("rkgd,rnkd->rkgn", queries, keys[slots].float())
            weights = torch.softmax(scores.masked_fill(hidden[:, None, None], -math.inf), dim=-1)
            weights = weights.masked_fill(hidden[:, None, None], 0.0)
            seen_values = values[slots].float().masked_fill(hidden[..., None, None], 0.0)
            result = torch.einsum("rkgn,rnkd->rkgd", weights, seen_values)
            output[rows] = result.flatten(1, 2).to(q.dtype)
        return output

    return launch
