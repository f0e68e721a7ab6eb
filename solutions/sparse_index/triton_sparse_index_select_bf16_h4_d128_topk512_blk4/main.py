"""Exact index selection in Triton: scores by tensor cores, then two thresholds in place of a sort.

1. `score_tile` (many rows per sequence) or `score_row` (few) writes approximate scores and, of each group of
   columns, the highest. Rows that see at most 512 blocks are not scored.
2. `select`, one program per row: the 512th highest group bounds the 512th score from below; blocks above that
   bound are listed in increasing id; bisection over the order-preserving integer bits finds the 512th score
   of the list. Blocks within MARGIN of it are scored again exactly, as the reference does (float64, rounded
   to float32), wherever they could change the set; a second bisection and a count of ties then give the
   answer, already in increasing id.

The margin is several times the worst error of float32 accumulation over 128 products. A row that lists more
blocks than fit a program (many equal scores) bisects over memory instead, slower and as exact. Boundary: the
whole definition. Needs torch and Triton alone.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones; right
with seeded contexts of up to 249,088 tokens.
"""

import math

import torch
import triton
import triton.language as tl

TOPK, BLOCK_SIZE = 512, 4
MIN_ROWS = 16  # rows of the smallest tensor-core tile
# Rows and columns per tile, consecutive tiles per program, warps, stages; from a sweep on an H200.
TILE = (64, 64, 16, 4, 3)
ROW = (MIN_ROWS, 128, 4, 4, 3)  # the same with one row per program, its heads padded; no sweep
SELECT_WARPS, CHUNK, LISTED, AGAIN = 8, 4096, 2048, 64
MAX_SCORE_BYTES = 2**29  # rows are scored in chunks below this
MARGIN = 2.0**-16  # of the row's highest score


@triton.jit
def key_rows(page_table, sequence, columns, seen, max_pages, page_size):
    """Find the row of the flat key cache that holds each block of a sequence, 0 where not `seen`."""
    page = tl.load(page_table + sequence * max_pages + columns // page_size, mask=seen, other=0)
    return page.to(tl.int64) * page_size + columns % page_size


@triton.jit
def head_rows(q, row, mine, head, HEADS: tl.constexpr, SIZE: tl.constexpr, INTERPRET: tl.constexpr):
    """Load the queries of one head of some rows, zero where not `mine`."""
    at = (row.to(tl.int64) * HEADS + head)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    queries = tl.load(q + at, mask=mine[:, None], other=0.0)
    if INTERPRET:
        queries = queries.to(tl.float32)
    return queries


@triton.jit
def score_tile(
    q, k, page_table, query_seq, query_pos,
    scores, groups,  # written
    first_row, last_row, max_pages, page_size, width, group_width, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, TOPK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, GROUP: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (span of STEPS * COLUMNS columns, tile of ROWS rows), the sequences of the tile consecutively.

    The four heads stay apart, so that their sum needs no exchange between threads.
    """
    tl.static_assert(HEADS == 4)
    local = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = first_row + local
    real = row < last_row
    seq = tl.load(query_seq + row, mask=real, other=0)
    visible = (tl.load(query_pos + row, mask=real, other=-1) + 1) // BLOCK_SIZE
    visible = tl.where(visible > TOPK, visible, 0)
    begin = tl.program_id(0) * STEPS * COLUMNS
    waiting = visible > begin
    channel = tl.arange(0, SIZE)
    while tl.sum(waiting.to(tl.int32), axis=0) > 0:
        sequence = tl.min(tl.where(waiting, seq, 2147483647), axis=0)
        mine = waiting & (seq == sequence)
        waiting = waiting & (seq != sequence)
        end = tl.minimum(tl.max(tl.where(mine, visible, 0), axis=0), begin + STEPS * COLUMNS)
        first = head_rows(q, row, mine, 0, HEADS, SIZE, INTERPRET)
        second = head_rows(q, row, mine, 1, HEADS, SIZE, INTERPRET)
        third = head_rows(q, row, mine, 2, HEADS, SIZE, INTERPRET)
        fourth = head_rows(q, row, mine, 3, HEADS, SIZE, INTERPRET)
        for start in range(begin, end, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            at = key_rows(page_table, sequence, columns, columns < end, max_pages, page_size)
            key_at = at[:, None] * SIZE + channel[None, :]
            keys = tl.load(k + key_at, mask=(columns < end)[:, None], other=0.0)
            if INTERPRET:
                keys = keys.to(tl.float32)
            keys = tl.trans(keys)
            total = tl.maximum(tl.dot(first, keys), 0.0) + tl.maximum(tl.dot(second, keys), 0.0)
            total += tl.maximum(tl.dot(third, keys), 0.0)
            total += tl.maximum(tl.dot(fourth, keys), 0.0)
            total *= scale
            shown = mine[:, None] & (columns[None, :] < visible[:, None])
            tl.store(scores + local[:, None].to(tl.int64) * width + columns[None, :], total, mask=shown)
            best = tl.max(tl.reshape(tl.where(shown, total, -1.0), [ROWS, GROUP, COLUMNS // GROUP]), axis=1)
            place = start // GROUP + tl.arange(0, COLUMNS // GROUP)
            group_at = local[:, None].to(tl.int64) * group_width + place[None, :]
            tl.store(groups + group_at, best, mask=mine[:, None])


@triton.jit
def score_row(
    q, k, page_table, query_seq, query_pos,
    scores, groups,  # written
    first_row, last_row, max_pages, page_size, width, group_width, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, TOPK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, GROUP: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Program (span of STEPS * COLUMNS columns, row); ROWS: the heads, padded."""
    local = tl.program_id(1).to(tl.int64)
    row = first_row + local
    visible = (tl.load(query_pos + row) + 1) // BLOCK_SIZE
    begin = tl.program_id(0) * STEPS * COLUMNS
    if (visible <= TOPK) | (visible <= begin):
        return
    sequence = tl.load(query_seq + row)
    head, channel = tl.arange(0, ROWS), tl.arange(0, SIZE)
    query_at = (row * HEADS + head[:, None]) * SIZE + channel[None, :]
    queries = tl.load(q + query_at, mask=(head < HEADS)[:, None], other=0.0)
    if INTERPRET:
        queries = queries.to(tl.float32)
    end = tl.minimum(visible, begin + STEPS * COLUMNS)
    for start in range(begin, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        shown = columns < end
        at = key_rows(page_table, sequence, columns, shown, max_pages, page_size)
        keys = tl.load(k + at[:, None] * SIZE + channel[None, :], mask=shown[:, None], other=0.0)
        if INTERPRET:
            keys = keys.to(tl.float32)
        total = tl.sum(tl.maximum(tl.dot(queries, tl.trans(keys)), 0.0), axis=0) * scale
        tl.store(scores + local * width + columns, total, mask=shown)
        best = tl.max(tl.reshape(tl.where(shown, total, -1.0), [GROUP, COLUMNS // GROUP]), axis=0)
        tl.store(groups + local * group_width + start // GROUP + tl.arange(0, COLUMNS // GROUP), best)


@triton.jit
def bits(x):
    """Map the float32 x >= 0 to integers in the same order; -1 stands for nothing."""
    return tl.where(x < 0.0, -1, x.to(tl.int32, bitcast=True))


@triton.jit
def nth_highest(keys, count: tl.constexpr):
    """Find the largest integer t >= 0 with `count` keys >= t; 0 where there are fewer keys."""
    low = tl.max(keys, axis=0) * 0
    high = tl.maximum(tl.max(keys, axis=0), 0)
    while low < high:
        middle = low + (high - low + 1) // 2
        enough = tl.sum((keys >= middle).to(tl.int32), axis=0) >= count
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def list_blocks(scores, listed, visible, bound, CHUNK: tl.constexpr):
    """List the visible blocks with a score of at least `bound` in increasing id; return their number."""
    count = visible * 0
    for start in range(0, visible, CHUNK):
        block = start + tl.arange(0, CHUNK)
        score = tl.load(scores + block, mask=block < visible, other=-1.0)
        take = (block < visible) & (score >= bound)
        at = count + tl.cumsum(take.to(tl.int32), axis=0) - 1
        tl.store(listed + at, block, mask=take)
        count += tl.sum(take.to(tl.int32), axis=0)
    return count


@triton.jit
def listed_bits(scores, listed, start, count, CHUNK: tl.constexpr):
    """Load the bits of the scores of listed blocks start .. start + CHUNK - 1, -1 past the end of the list."""
    slot = start + tl.arange(0, CHUNK)
    block = tl.load(listed + slot, mask=slot < count, other=0)
    return bits(tl.load(scores + block, mask=slot < count, other=-1.0))


@triton.jit
def count_above(scores, listed, count, limit, CHUNK: tl.constexpr):
    """Count the listed blocks with bits >= limit."""
    found = limit * 0
    for start in range(0, count, CHUNK):
        keys = listed_bits(scores, listed, start, count, CHUNK)
        found += tl.sum((keys >= limit).to(tl.int32), axis=0)
    return found


@triton.jit
def threshold(scores, listed, count, highest, TOPK: tl.constexpr, LISTED: tl.constexpr):
    """Find the bits of the TOPK-th highest listed score."""
    if count <= LISTED:
        found = nth_highest(listed_bits(scores, listed, 0, count, LISTED), TOPK)
    else:
        found = count * 0
        high = highest
        while found < high:
            middle = found + (high - found + 1) // 2
            enough = count_above(scores, listed, count, middle, LISTED) >= TOPK
            found = tl.where(enough, middle, found)
            high = tl.where(enough, high, middle - 1)
    return found


@triton.jit
def score_again(
    q, k, page_table, sequence, scores, listed, count, low, high, max_pages, page_size,
    HEADS: tl.constexpr, SIZE: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Score exactly, in place, the listed blocks whose score lies between low and high."""
    channel = tl.arange(0, SIZE)
    for start in range(0, count, AGAIN):
        slot = start + tl.arange(0, AGAIN)
        block = tl.load(listed + slot, mask=slot < count, other=0)
        score = tl.load(scores + block, mask=slot < count, other=-1.0)
        near = (slot < count) & (score >= low) & (score <= high)
        if tl.sum(near.to(tl.int32), axis=0) > 0:
            at = key_rows(page_table, sequence, block, near, max_pages, page_size)
            keys = tl.load(k + at[:, None] * SIZE + channel[None, :], mask=near[:, None], other=0.0)
            keys = keys.to(tl.float32).to(tl.float64)
            total = tl.zeros([AGAIN], tl.float64)
            for head in tl.static_range(HEADS):
                query = tl.load(q + head * SIZE + channel).to(tl.float32).to(tl.float64)
                product = tl.sum(keys * query[None, :], axis=1)
                total += tl.where(product > 0.0, product, 0.0)
            root = tl.sqrt(tl.full([AGAIN], SIZE, tl.float64))
            tl.store(scores + block, (total / root).to(tl.float32), mask=near)


@triton.jit
def select(
    q, k, page_table, query_seq, query_pos,
    scores, groups, listed, block_ids,  # listed is workspace, block_ids the result
    first_row, max_pages, page_size, width, group_width,
    HEADS: tl.constexpr, SIZE: tl.constexpr, TOPK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    CHUNK: tl.constexpr, LISTED: tl.constexpr, AGAIN: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """Program (row). scores, groups and listed hold the rows from first_row on; listed is workspace."""
    local = tl.program_id(0).to(tl.int64)
    row = first_row + local
    visible = (tl.load(query_pos + row) + 1) // BLOCK_SIZE
    block_ids += row * TOPK
    if visible <= TOPK:
        slot = tl.arange(0, TOPK)
        tl.store(block_ids + slot, tl.where(slot < visible, slot, -1))
        return
    scores += local * width
    listed += local * width
    q += row * HEADS * SIZE
    sequence = tl.load(query_seq + row)

    place = tl.arange(0, GROUPS)
    written = place < (visible + COLUMNS - 1) // COLUMNS * (COLUMNS // GROUP)
    best = tl.load(groups + local * group_width + place, mask=written, other=-1.0)
    top = tl.max(best, axis=0)
    bound = nth_highest(bits(best), TOPK).to(tl.float32, bitcast=True) - 2.0 * MARGIN * top
    count = list_blocks(scores, listed, visible, bound, CHUNK)
    tl.debug_barrier()

    highest = bits(top)
    last = threshold(scores, listed, count, highest, TOPK, LISTED)
    low = last.to(tl.float32, bitcast=True) - MARGIN * top
    high = last.to(tl.float32, bitcast=True) + MARGIN * top
    if count_above(scores, listed, count, bits(tl.maximum(low, 0.0)), LISTED) > TOPK:
        score_again(
            q, k, page_table, sequence, scores, listed, count, low, high, max_pages, page_size, HEADS, SIZE, AGAIN
        )
        tl.debug_barrier()
        last = threshold(scores, listed, count, bits(top + MARGIN * top), TOPK, LISTED)

    ties = TOPK - count_above(scores, listed, count, last + 1, LISTED)  # of the equal scores
    taken = visible * 0
    equal = visible * 0
    for start in range(0, count, LISTED):
        keys = listed_bits(scores, listed, start, count, LISTED)
        same = keys == last
        rank = equal + tl.cumsum(same.to(tl.int32), axis=0)
        take = (keys > last) | (same & (rank <= ties))
        at = taken + tl.cumsum(take.to(tl.int32), axis=0) - 1
        slot = start + tl.arange(0, LISTED)
        tl.store(block_ids + at, tl.load(listed + slot, mask=take, other=0), mask=take)
        taken += tl.sum(take.to(tl.int32), axis=0)
        equal += tl.sum(same.to(tl.int32), axis=0)


def run(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    """Return block_ids int32 [num_tokens, 512]. Inputs as in the definition."""
    return prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos)()


def prepare(q_index, k_index_cache, page_table, seq_lens, query_seq, query_pos):
    rows, heads, size = q_index.shape
    page_size, max_pages = k_index_cache.shape[1], page_table.shape[1]
    few = rows <= 4 * page_table.shape[0]
    score, (tile_rows, columns, steps, warps, stages) = (score_row, ROW) if few else (score_tile, TILE)
    width = triton.cdiv(max_pages * page_size, columns) * columns
    group = 4 if width <= 16384 else 16
    inputs = q_index, k_index_cache, page_table, query_seq, query_pos
    sizes = max_pages, page_size, width, width // group
    chunk_rows = max(128, MAX_SCORE_BYTES // (4 * width) // 128 * 128)
    shared = {"HEADS": heads, "SIZE": size, "TOPK": TOPK, "BLOCK_SIZE": BLOCK_SIZE, "COLUMNS": columns, "GROUP": group}
    scoring = shared | {
        "ROWS": tile_rows,
        "STEPS": steps,
        "num_warps": warps,
        "num_stages": stages,
        "INTERPRET": q_index.device.type == "cpu",
    }
    selecting = shared | {
        "GROUPS": max(16, triton.next_power_of_2(width // group)),
        "CHUNK": CHUNK,
        "LISTED": LISTED,
        "AGAIN": AGAIN,
        "MARGIN": MARGIN,
        "num_warps": SELECT_WARPS,
    }

    def launch():
        block_ids = q_index.new_empty(rows, TOPK, dtype=torch.int32)
        held = min(rows, chunk_rows)
        scores = q_index.new_empty(held, width, dtype=torch.float32)
        groups = q_index.new_empty(held, width // group, dtype=torch.float32)
        listed = q_index.new_empty(held, width, dtype=torch.int32)
        for first in range(0, rows, chunk_rows):
            here = min(chunk_rows, rows - first)
            if width > TOPK:
                grid = (triton.cdiv(width, steps * columns), here if few else triton.cdiv(here, tile_rows))
                score[grid](*inputs, scores, groups, first, first + here, *sizes, 1.0 / math.sqrt(size), **scoring)
            select[(here,)](*inputs, scores, groups, listed, block_ids, first, *sizes, **selecting)
        return block_ids

    return launch
