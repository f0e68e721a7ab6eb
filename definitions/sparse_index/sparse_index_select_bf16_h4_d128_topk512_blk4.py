"""Sparse index selection: for each query the 512 best of the complete four-token blocks before it.

    score(t, n) = float32( sum over h of max(0, q_index[t, h] . key[n]) / sqrt(head_dim) )
    visible(t)  = (query_pos[t] + 1) // 4      blocks 0 .. visible - 1 are complete at this query
    block_ids[t] = the min(512, visible) blocks of highest score, lower id first among equal scores,
                   written in increasing id, then -1

The heads have no weights. The block that holds the query is a candidate only once it is complete, and then
it competes like any other: a query need not select its own block. The incomplete block is never emitted.

Layout: key n of a sequence lies in page page_table[seq, n // page_size], row n % page_size.

Rounding: products of BF16 are exact in float64, and so, in practice, are sums of 128 of them; the score is
rounded to float32 once, and equality of scores means equality of these float32 values.
"""

import math

import torch

TOPK = 512
BLOCK_SIZE = 4

# Rows scored at once. At a context of 249,088 tokens (62,272 blocks) a float64 score matrix is
# 128 * 62272 * 8 B = 61 MiB, as are the order that sorts it and the widened keys (62272 * 128 * 8 B).
ROWS = 128


def run(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    """Return block_ids.

    q_index        bfloat16 [num_tokens, 4, 128]           index queries, normalised and rotated
    k_index_cache  bfloat16 [num_pages, page_size, 128]    one index key a block, normalised and rotated
    page_table     int32    [num_seqs, max_pages]          cache page of each logical page, -1 where none
    seq_lens       int32    [num_seqs]                     context in tokens; not read: query_pos < seq_lens
    query_seq      int32    [num_tokens]                   sequence of a row
    query_pos      int32    [num_tokens]                   position of a row in its sequence
    block_ids      int32    [num_tokens, 512]              selected blocks, increasing, then -1
    """
    visible = (query_pos.long() + 1) // BLOCK_SIZE
    slots = torch.arange(TOPK, device=q_index.device)
    block_ids = torch.where(slots < visible[:, None], slots, -1).int()  # final where at most TOPK are visible
    for sequence in range(page_table.shape[0]):
        rows = ((query_seq == sequence) & (visible > TOPK)).nonzero().flatten()
        if rows.numel() == 0:
            continue
        keys = gather_keys(k_index_cache, page_table[sequence], int(visible[rows].max()))
        for chunk in rows.split(ROWS):
            scores = block_scores(q_index[chunk], keys)
            block_ids[chunk] = best_blocks(scores, visible[chunk]).int()
    return block_ids


def gather_keys(k_index_cache, pages, blocks):
    """The first `blocks` index keys of one sequence, float64 [blocks, head_dim]."""
    page_size = k_index_cache.shape[1]
    used = pages[: -(-blocks // page_size)].long()
    return k_index_cache[used].flatten(0, 1)[:blocks].double()


def block_scores(queries, keys):
    """Scores of queries [rows, heads, head_dim] against keys [blocks, head_dim]: float32 [rows, blocks]."""
    rows, heads, head_dim = queries.shape
    total = torch.zeros(rows, keys.shape[0], dtype=torch.float64, device=keys.device)
    for head in range(heads):
        total += torch.relu(queries[:, head].double() @ keys.T)
    return (total / math.sqrt(head_dim)).float()


def best_blocks(scores, visible):
    """Ids [rows, TOPK], increasing, of the best blocks below visible [rows], which is over TOPK."""
    ids = torch.arange(scores.shape[1], device=scores.device)
    scores = scores.masked_fill(ids >= visible[:, None], -math.inf)
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices  # stable: ties to the lower id
    return order[:, :TOPK].sort(dim=1).values
