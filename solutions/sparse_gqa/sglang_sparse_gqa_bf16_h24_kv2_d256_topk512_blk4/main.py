"""SGLang 0.5.23's sparse attention of Qwen 3.8 Flash-Next behind an adapter (module
`qwen_sparse_attn_backend`).

Engine calls: prefill `sparse_gqa_paged_prefill_triton`, which reads the pool in place; decode (one row per
sequence) `qwen_sparse_fa2_cu_seqlens_triton` and `qwen_sparse_kv_extraction_compact_triton`, which gather the
selected keys and values, then FlashAttention-4's `flash_attn_varlen_func`: on sm_90 what
`QwenSparseAttnBackend.forward_decode` does. On sm_100 the engine calls TRT-LLM paged attention in decode
instead; that path is not written here and not run.

Boundary: the whole definition. Adaptations: the engine's own kernel expands block ids to token positions;
positions become pool slots through page_table in PyTorch, and the engine's slot table is the identity; each
row is an entry of its own, because rows of the definition come in any order. The engine's prefill kernel
rounds q * scale and the probabilities to BF16.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones. With
values of standard deviation 5 rows of few keys missed the bound.
"""

import torch
from sglang.srt.layers.attention.qsa.kernel import expand_qsa_block_indices
from sglang.srt.layers.attention.qsa.sparse_attn import (
    qwen_sparse_fa2_cu_seqlens_triton,
    qwen_sparse_kv_extraction_compact_triton,
    sparse_gqa_paged_prefill_triton,
)

BLOCK_SIZE = 4
MAX_ENTRIES = 16384  # of one prefill call: entries * key/value heads is a grid dimension below 65536
MAX_DECODE_ROWS = 512  # a row's gathered keys and values are 4.2 MB


def run(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    """Return output bfloat16 [num_tokens, 24, 256]. Inputs as in the definition."""
    return prepare(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale)()


def prepare(q, k_cache, v_cache, block_ids, page_table, seq_lens, query_seq, query_pos, sm_scale):
    rows = q.shape[0]
    keys, values = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    identity = torch.arange(keys.shape[0], dtype=torch.int32, device=q.device)[None]
    if 0 < rows == page_table.shape[0] <= MAX_DECODE_ROWS:
        width = block_ids.shape[1] * BLOCK_SIZE + BLOCK_SIZE - 1
        attend = prepare_decode(q, keys, values, identity, width, float(sm_scale))
    else:
        attend = prepare_prefill(q, keys, values, identity, query_pos, float(sm_scale))

    def launch():
        tokens = expand_qsa_block_indices(
            block_ids, query_pos, seq_lens[query_seq], BLOCK_SIZE, block_ids.shape[1] * BLOCK_SIZE
        )
        return attend(slots_of(tokens, page_table[query_seq], k_cache.shape[1]))

    return launch


def slots_of(tokens, pages, page_size):
    """Find pool slots of token positions [rows, n], int32, -1 where the position is; pages [rows, max_pages]."""
    seen = tokens.clamp(min=0)
    slots = pages.gather(1, (seen // page_size).long()) * page_size + seen % page_size
    return torch.where(tokens >= 0, slots, -1)


def prepare_prefill(q, keys, values, identity, query_pos, sm_scale):
    entries = torch.arange(min(q.shape[0], MAX_ENTRIES) + 1, dtype=torch.int32, device=q.device)

    def attend(slots):
        parts = []
        for first in range(0, q.shape[0], MAX_ENTRIES):
            part = slice(first, first + MAX_ENTRIES)
            count = len(q[part])
            parts.append(
                sparse_gqa_paged_prefill_triton(
                    q[part],
                    keys,
                    values,
                    identity,
                    slots[part],
                    entries[: count + 1],
                    query_pos[part] + 1,
                    sm_scale,
                    max_q=1,
                )
            )
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    return attend


def prepare_decode(q, keys, values, identity, width, sm_scale):
    from flash_attn.cute.interface import flash_attn_varlen_func

    rows, slots_in_pool = q.shape[0], keys.shape[0]
    offsets = torch.arange(rows + 1, dtype=torch.int32, device=q.device)
    request = torch.zeros(rows, dtype=torch.int32, device=q.device)
    limit = torch.full((rows,), slots_in_pool, dtype=torch.int32, device=q.device)
    # Zeroed once, as in the engine: attention reads past the last packed row, where a NaN would spread.
    packed_keys, packed_values = (x.new_zeros(rows * width, *x.shape[1:]) for x in (keys, values))

    def attend(slots):
        counts, cu_k = torch.empty_like(request), torch.empty_like(offsets)
        qwen_sparse_fa2_cu_seqlens_triton(limit, slots, counts, cu_k, rows, width)
        qwen_sparse_kv_extraction_compact_triton(
            keys, values, identity, request, slots, limit, cu_k, packed_keys, packed_values, rows, width
        )
        output, _ = flash_attn_varlen_func(
            q=q,
            k=packed_keys,
            v=packed_values,
            cu_seqlens_q=offsets,
            cu_seqlens_k=cu_k,
            max_seqlen_q=1,
            max_seqlen_k=width,
            softmax_scale=sm_scale,
            causal=True,
        )
        return output

    return attend
