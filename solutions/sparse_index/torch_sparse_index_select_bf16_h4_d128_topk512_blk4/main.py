"""Sparse index selection in plain PyTorch: all blocks of all sequences scored in float64, then one stable
sort.

Boundary: the whole definition, exact. The work is that of the reference, without its loop over sequences;
rows are taken in groups. Run on CPU and on an H200 (torch 2.14.1): passes its starter workloads and the
larger captured ones.
"""

import math

import torch

TOPK, BLOCK_SIZE = 512, 4
ROWS = 8  # a row gathers all keys of its sequence: 16384 blocks * 128 * 8 B = 16 MiB


def run(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    """Return block_ids int32 [num_tokens, 512]. Inputs as in the definition."""
    return prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos)()


def prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    head_dim = q_index.shape[2]
    blocks = page_table.shape[1] * k_index_cache.shape[1]
    ids = torch.arange(max(blocks, TOPK), device=q_index.device)

    def launch():
        output = torch.empty(q_index.shape[0], TOPK, dtype=torch.int32, device=q_index.device)
        for first in range(0, q_index.shape[0], ROWS):
            rows = slice(first, first + ROWS)
            visible = (query_pos[rows, None].long() + 1) // BLOCK_SIZE
            scores = _scores(q_index[rows], k_index_cache, page_table[query_seq[rows].long()], head_dim)
            scores = torch.nn.functional.pad(scores, (0, len(ids) - blocks))
            scores = scores.masked_fill(ids >= visible, -math.inf)
            order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :TOPK]
            chosen = torch.where(ids[:TOPK] < visible, order, len(ids)).sort(dim=1).values
            output[rows] = torch.where(chosen < len(ids), chosen, -1).int()
        return output

    return launch


def _scores(queries, k_index_cache, pages, head_dim):
    """Score [rows, heads, head_dim] against the keys of each row's pages [rows, pages]: float32 [rows, blocks]."""
    keys = k_index_cache[pages.long().clamp(min=0)].flatten(1, 2).double()
    products = torch.relu(torch.einsum("rhd,rnd->rhn", queries.double(), keys))
    return (products.sum(dim=1) / math.sqrt(head_dim)).float()
