"""Reduce an engine's cache to the pages that a call reaches, renumbered from 0."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def remap_pages(pages: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Renumber pages in order of first use.

    pages: integers, any shape, cache page or -1 for none. Returns the same shape in int32 with pages 0..P-1
    (-1 stays), and int64 [P], the cache page of each new one. Shared pages stay shared.
    """
    import torch

    used = pages >= 0
    found, inverse = torch.unique(pages[used].long(), return_inverse=True)
    first = torch.full((found.numel(),), inverse.numel(), dtype=torch.int64, device=pages.device)
    first.scatter_reduce_(0, inverse, torch.arange(inverse.numel(), device=pages.device), "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=pages.device)
    result = torch.full(pages.shape, -1, dtype=torch.int32, device=pages.device)
    result[used] = rank[inverse].int()
    return result, found[order]


def remap_slots(
    slots: "torch.Tensor", lengths: "torch.Tensor", page_size: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Renumber the pages that slots lie in, in increasing order of the cache's pages.

    slots: int [rows, width], page * page_size + offset or -1. lengths: int [rows], slots scanned in each row.
    Returns int32 slots in the new numbering, -1 for none and from the length on, and int64 [P] cache pages.
    """
    import torch

    scanned = torch.arange(slots.shape[1], device=slots.device) < lengths[:, None]
    valid = scanned & (slots >= 0)
    pages = slots.long().clamp_min(0) // page_size
    found, inverse = torch.unique(pages[valid], return_inverse=True)
    result = torch.full(slots.shape, -1, dtype=torch.int32, device=slots.device)
    result[valid] = (inverse * page_size + slots[valid].long() % page_size).int()
    return result, found


def logical_pages(slot_table: "torch.Tensor", page_size: int) -> "torch.Tensor":
    """Return the cache page of each logical page: int64 [sequences, pages] from token slots [sequences, tokens]."""
    return slot_table[:, ::page_size].long() // page_size
