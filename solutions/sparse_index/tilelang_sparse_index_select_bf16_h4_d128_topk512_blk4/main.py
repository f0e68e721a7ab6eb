"""TileLang scoring, exact-threshold top-512, Triton compaction; rows that see at most 512 blocks take no
score.

Scoring: SGLang 0.5.23's maintained TileLang kernels (TileLang 0.1.12), `qsa_mqa_decode` for one row per
sequence and `qsa_mqa_prefill_relative` otherwise. Threshold: the 512th largest value of a row by torch.topk.
Compaction: all blocks above it and, from the lowest id on, as many equal ones as are missing, written in
increasing id by a prefix sum.

Boundary: the whole definition. Adaptations: as in `sglang_<definition>`, without the sort of ids. Scores are
float32 sums, so a row whose 512th and 513th scores differ by less than their rounding can differ from the
float64 reference. No path differs on sm_100; not run there.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import torch
import triton
import triton.language as tl
from sglang.srt.layers.attention.qsa.mqa import qsa_mqa_decode, qsa_mqa_prefill_relative

TOPK, BLOCK_SIZE = 512, 4
DECODE_PAGE_SIZES = (8, 16, 32, 64)
MAX_SCORE_BYTES = 2**27
CHUNK = 4096


@triton.jit
def count_above(scores, limit, visible, CHUNK: tl.constexpr):
    """Count the first `visible` scores above limit."""
    found = visible * 0
    for start in range(0, visible, CHUNK):
        block = start + tl.arange(0, CHUNK)
        score = tl.load(scores + block, mask=block < visible, other=-1.0)
        found += tl.sum((score > limit).to(tl.int32), axis=0)
    return found


@triton.jit
def compact(scores, limits, visible, block_ids, width, TOPK: tl.constexpr, CHUNK: tl.constexpr):
    """Program (row). scores [rows, width] float32 >= 0, limits [rows] the TOPK-th highest of each row."""
    row = tl.program_id(0).to(tl.int64)
    seen = tl.load(visible + row)
    block_ids += row * TOPK
    if seen <= TOPK:
        slot = tl.arange(0, TOPK)
        tl.store(block_ids + slot, tl.where(slot < seen, slot, -1))
        return
    scores += row * width
    limit = tl.load(limits + row)
    ties = TOPK - count_above(scores, limit, seen, CHUNK)
    taken = seen * 0
    equal = seen * 0
    for start in range(0, seen, CHUNK):
        block = start + tl.arange(0, CHUNK)
        score = tl.load(scores + block, mask=block < seen, other=-1.0)
        same = score == limit
        rank = equal + tl.cumsum(same.to(tl.int32), axis=0)
        take = (score > limit) | (same & (rank <= ties))
        at = taken + tl.cumsum(take.to(tl.int32), axis=0) - 1
        tl.store(block_ids + at, block, mask=take)
        taken += tl.sum(take.to(tl.int32), axis=0)
        equal += tl.sum(same.to(tl.int32), axis=0)


def run(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    """Return block_ids int32 [num_tokens, 512]. Inputs as in the definition."""
    return prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos)()


def prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    rows, page_size = q_index.shape[0], k_index_cache.shape[1]
    width = page_table.shape[1] * page_size
    chunk = max(32, MAX_SCORE_BYTES // (4 * width) // 32 * 32)
    decode = rows == page_table.shape[0] and page_size in DECODE_PAGE_SIZES
    score = _decode_scores if decode else _prefill_scores
    slot = torch.arange(TOPK, dtype=torch.int32, device=q_index.device)
    column = torch.arange(width, device=q_index.device)

    def launch():
        visible = (query_pos + 1) // BLOCK_SIZE
        if width <= TOPK:  # no row can see more
            return torch.where(slot < visible[:, None], slot, -1)
        block_ids = q_index.new_empty(rows, TOPK, dtype=torch.int32)
        pages, first = page_table.clamp(min=0), 0
        for scores in score(q_index, k_index_cache, pages, query_seq, visible, width, chunk):
            part = slice(first, first + len(scores))
            masked = scores.masked_fill(column >= visible[part, None], -1.0)
            limits = torch.topk(masked, TOPK, dim=1).values[:, -1].contiguous()
            compact[(len(scores),)](scores, limits, visible[part], block_ids[part], width, TOPK=TOPK, CHUNK=CHUNK)
            first += len(scores)
        return block_ids

    return launch


def _decode_scores(q_index, k_index_cache, pages, query_seq, visible, width, chunk):
    yield qsa_mqa_decode(q_index, k_index_cache.unsqueeze(2), pages[query_seq], visible, width, min_scored_len=TOPK)


def _prefill_scores(q_index, k_index_cache, pages, query_seq, visible, width, chunk):
    keys = k_index_cache[pages.long()].view(-1, 1, q_index.shape[2])
    starts = query_seq * width
    for first in range(0, len(q_index), chunk):
        rows = slice(first, first + chunk)
        yield qsa_mqa_prefill_relative(q_index[rows], keys, starts[rows], starts[rows] + visible[rows], width)
