"""SGLang 0.5.23's index selection of Qwen 3.8 Flash-Next behind an adapter (module `qsa_indexer`).

Engine calls: decode (one row per sequence, page size 8, 16, 32 or 64) `qsa_mqa_decode`, otherwise
`qsa_mqa_prefill_relative` over packed keys, both TileLang on a GPU; then `fast_topk`, a CUDA kernel compiled
on first use. Boundary: the whole definition. Adaptations: pages are gathered into packed keys in PyTorch; -1
pages read page 0, whose scores lie past every length; the engine leaves the order of ids open, so they are
sorted, -1 last. The engine breaks ties of the 512th score arbitrarily and scores in float32, so rows with
such ties can differ from the reference. No path differs on sm_100; not run there.
Run on an H200 (torch 2.14.1): passes its starter workloads and the larger captured ones.
"""

import torch
from sglang.kernels.ops.attention.fast_topk import fast_topk
from sglang.srt.layers.attention.qsa.mqa import qsa_mqa_decode, qsa_mqa_prefill_relative

TOPK, BLOCK_SIZE = 512, 4
DECODE_PAGE_SIZES = (8, 16, 32, 64)
MAX_SCORE_BYTES = 2**27  # the engine's own limit for a chunk of prefill rows


def run(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    """Return block_ids int32 [num_tokens, 512]. Inputs as in the definition."""
    return prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos)()


def prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    rows, page_size, max_pages = q_index.shape[0], k_index_cache.shape[1], page_table.shape[1]
    width = max_pages * page_size
    chunk = max(32, MAX_SCORE_BYTES // (4 * width) // 32 * 32)
    decode = rows == page_table.shape[0] and page_size in DECODE_PAGE_SIZES
    score = _decode_scores if decode else _prefill_scores

    def launch():
        visible = (query_pos + 1) // BLOCK_SIZE
        chosen = []
        pages = page_table.clamp(min=0)
        for scores, lengths in score(q_index, k_index_cache, pages, query_seq, visible, width, chunk):
            ids = fast_topk(scores, lengths, topk=TOPK)
            ids = torch.where(ids < 0, width, ids).sort(dim=1).values
            chosen.append(torch.where(ids == width, -1, ids))
        return torch.cat(chosen) if len(chosen) != 1 else chosen[0]

    return launch


def _decode_scores(q_index, k_index_cache, pages, query_seq, visible, width, chunk):
    yield (
        qsa_mqa_decode(q_index, k_index_cache.unsqueeze(2), pages[query_seq], visible, width, min_scored_len=TOPK),
        visible,
    )


def _prefill_scores(q_index, k_index_cache, pages, query_seq, visible, width, chunk):
    keys = k_index_cache[pages.long()].view(-1, 1, q_index.shape[2])
    starts = query_seq * width
    for first in range(0, len(q_index), chunk):
        rows = slice(first, first + chunk)
        yield (
            qsa_mqa_prefill_relative(q_index[rows], keys, starts[rows], starts[rows] + visible[rows], width),
            visible[rows],
        )
