"""Sparse grouped-query attention over selected four-token blocks and the incomplete tail block.

    tokens(t) = the four tokens of each selected block, and 4 * ((query_pos[t] + 1) // 4) .. query_pos[t]
    output[t, h] = sum over j in tokens(t) of softmax_j(q[t, h] . K[j, h // 12] * sm_scale) * V[j, h // 12]

The tail has 0 to 3 tokens. Where (query_pos + 1) % 4 == 0 it is empty, and a query whose own block was not
selected does not attend to itself. A row that sees no token at all gives zeros.

Layout: token j of a sequence lies in page page_table[seq, j // page_size], row j % page_size.

Rounding: scores, softmax and the weighted sum are float32; output is rounded to BF16 once.
"""

import math

import torch

BLOCK_SIZE = 4

# Rows attended at once, one key/value head after the other. A row gathers 512 * 4 + 3 = 2051 keys and values,
# whatever the context: 32 * 2051 * 256 * 4 B = 64 MiB of float32 keys, and as much for the values.
ROWS = 32


def run(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    """Return output.

    q           bfloat16 [num_tokens, 24, 256]              queries, normalised and rotated, not scaled
    k_cache     bfloat16 [num_pages, page_size, 2, 256]     keys, normalised and rotated
    v_cache     bfloat16 [num_pages, page_size, 2, 256]     values
    block_ids   int32    [num_tokens, 512]                  selected blocks, -1 where none
    page_table  int32    [num_seqs, max_pages]              cache page of each logical page, -1 where none
    seq_lens    int32    [num_seqs]                         context in tokens; not read: query_pos < seq_lens
    query_seq   int32    [num_tokens]                       sequence of a row
    query_pos   int32    [num_tokens]                       position of a row in its sequence
    sm_scale    float32  scalar                             factor of the scores
    output      bfloat16 [num_tokens, 24, 256]
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        output = torch.empty_like(q)
        for rows in torch.arange(q.shape[0], device=q.device).split(ROWS):
            tokens = visible_tokens(block_ids[rows].long(), query_pos[rows].long())
            pages = page_table[query_seq[rows].long()].long()
            output[rows] = attend(q[rows].float(), k_cache, v_cache, tokens, pages, sm_scale).to(q.dtype)
        return output
    finally:
        torch.set_float32_matmul_precision(precision)


def visible_tokens(block_ids, query_pos):
    """Positions that each row sees, negative in unused slots: int64 [rows, topk * 4 + 3]."""
    lane = torch.arange(BLOCK_SIZE, device=block_ids.device)
    body = (block_ids[..., None] * BLOCK_SIZE + lane).flatten(1)  # block -1 gives -4 .. -1
    tail = ((query_pos + 1) // BLOCK_SIZE * BLOCK_SIZE)[:, None] + lane[:-1]
    return torch.cat([body, torch.where(tail <= query_pos[:, None], tail, -1)], dim=1)


def attend(q, k_cache, v_cache, tokens, pages, sm_scale):
    """q [rows, heads, d] over tokens [rows, n] through pages [rows, max_pages] -> [rows, heads, d], float32.

    Unused slots read some row of the cache, which may hold NaN, and are masked.
    """
    page_size, kv_heads = k_cache.shape[1:3]
    hidden = (tokens < 0)[:, None, :]
    tokens = tokens.clamp(min=0)
    page, row = pages.gather(1, tokens // page_size).clamp(min=0), tokens % page_size
    outputs = []
    for kv_head, queries in enumerate(q.chunk(kv_heads, dim=1)):
        scores = queries @ k_cache[page, row, kv_head].float().mT * sm_scale
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).masked_fill(hidden, 0.0)
        values = v_cache[page, row, kv_head].float().masked_fill_(hidden.mT, 0.0)
        outputs.append(weights @ values)
    return torch.cat(outputs, dim=1)
