"""Shards of several ranks become one logical operator; pages are renumbered without changing what is read."""

import multiprocessing
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.capture.paging import logical_pages, remap_pages, remap_slots
from inference_kernels.capture.ranks import Ranks


def shard(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """[2, 3 + rank, 4] of a rank; sizes along the gathered axis differ."""
    return (torch.arange(2 * (3 + rank) * 4).view(2, 3 + rank, 4) % 7 + 10 * rank).to(dtype)


def gather_on_rank(rank: int, port: int, results) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    ranks = Ranks(2, rank, torch.distributed.group.WORLD)
    whole = [ranks.cat(shard(rank, dtype), 1) for dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn)]
    empty = ranks.cat(torch.zeros(2 * rank, 5), 0)
    results.put((rank, [tensor.float().tolist() for tensor in whole], list(empty.shape)))
    results.close()
    results.join_thread()
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_ranks_gather_in_rank_order():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=gather_on_rank, args=(rank, port, results)) for rank in range(2)]
    for worker in workers:
        worker.start()
    found = sorted(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(10)
    expected = torch.cat([shard(0, torch.float32), shard(1, torch.float32)], 1).tolist()
    assert [rank for rank, *_ in found] == [0, 1]
    for _, tensors, empty in found:
        assert tensors == [expected] * 3 and empty == [2, 5]


def test_one_rank_gathers_nothing():
    tensor = torch.zeros(3)
    assert Ranks().cat(tensor, 0) is tensor


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(-1, 9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_remapped_pages_name_the_same_pages(rows):
    pages = torch.tensor(rows)
    new, order = remap_pages(pages)
    assert torch.equal(new < 0, pages < 0) and new.dtype == torch.int32
    assert torch.equal(order[new[new >= 0].long()], pages[pages >= 0])
    first_used = list(dict.fromkeys(page for row in rows for page in row if page >= 0))
    assert order.tolist() == first_used


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(-1, 47), min_size=4, max_size=4), st.integers(0, 4)), min_size=1, max_size=4
    )
)
def test_remapped_slots_read_the_same_rows(rows):
    slots, lengths = torch.tensor([row for row, _ in rows]), torch.tensor([length for _, length in rows])
    new, pages = remap_slots(slots, lengths, 8)
    cache = torch.arange(48)
    small = cache.view(6, 8)[pages].flatten()
    scanned = (torch.arange(4) < lengths[:, None]) & (slots >= 0)
    assert torch.equal(new >= 0, scanned)
    assert torch.equal(small[new[scanned].long()], cache[slots[scanned]])
    assert pages.tolist() == sorted({slot // 8 for slot in slots[scanned].tolist()})


def test_logical_pages():
    table = torch.tensor([[12, 13, 14, 15, 4, 5], [20, 21, 22, 23, 8, 9]])
    assert logical_pages(table, 4).tolist() == [[3, 1], [5, 2]]
