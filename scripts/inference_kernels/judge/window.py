"""The window: the shared-memory buffer through which every tensor passes between judge and worker, in pieces.

Its size is sealed, so that neither side can unmap what the other uses. Its contents may change at any moment: each
side copies a piece into memory of its own before it reads it. On a GPU host it is pinned: copies between a GPU and
pinned memory are several times faster.
"""

import ctypes
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import EnvironmentMissing
from inference_kernels.core.tensors import byte_view

if TYPE_CHECKING:
    import torch

WINDOW_BYTES = 2**26
ALIGNMENT = 256
# (name, first byte of the tensor, place in the buffer, bytes)
Piece = tuple[Any, int, int, int]


def create_window() -> int:
    """Create WINDOW_BYTES of sealed anonymous memory and return its descriptor; EnvironmentMissing off Linux."""
    if not hasattr(os, "memfd_create"):
        raise EnvironmentMissing(
            expected="Linux, for memory whose size can be sealed",
            found=sys.platform,
            where="judge",
            remedy="judge on a Linux machine",
        )
    descriptor = os.memfd_create("window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, WINDOW_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def window_fulls(sizes: dict[Any, int]) -> Iterator[list[Piece]]:
    """Cut tensors of these sizes (bytes, by name) into fillings of one half of the buffer: lists of pieces.

    The halves alternate, so that one side may fill the next while the other empties the last.
    """
    half = WINDOW_BYTES // 2
    pieces: list[Piece] = []
    place, end = 0, half
    for name, size in sizes.items():
        start = 0
        while start < size:
            if place >= end:
                yield pieces
                pieces, place = [], end % WINDOW_BYTES
                end = place + half
            count = min(size - start, end - place)
            pieces.append((name, start, place, count))
            start, place = start + count, place + -(-count // ALIGNMENT) * ALIGNMENT
    if pieces:
        yield pieces


def copy_bytes(target: "torch.Tensor", source: "torch.Tensor") -> None:
    """Copy flat bytes between any devices.

    On the host with one thread: torch wakes all of them for 32 KiB, which takes milliseconds where others compute.
    """
    if target.is_cpu and source.is_cpu:
        target.numpy()[:] = source.numpy()
    else:
        target.copy_(source)


class Window:
    """One side's view of the shared-memory buffer; device: cpu, or cuda with a context in this process."""

    def __init__(self, descriptor: int, device: str):
        import torch

        self.bytes = torch.frombuffer(mmap.mmap(descriptor, WINDOW_BYTES), dtype=torch.uint8)
        self.pinned = False
        if device == "cuda":
            torch.cuda.synchronize()
            # Where the driver refuses, copies are slower and still correct.
            self.pinned = not ctypes.CDLL("libcuda.so.1").cuMemHostRegister_v2(
                ctypes.c_void_p(self.bytes.data_ptr()), ctypes.c_size_t(WINDOW_BYTES), ctypes.c_uint(0)
            )

    def put(self, pieces: list[Piece], tensors: dict[Any, "torch.Tensor"]) -> None:
        """Copy pieces of contiguous tensors into the buffer."""
        for name, start, place, count in pieces:
            copy_bytes(self.bytes[place : place + count], byte_view(tensors[name])[start : start + count])

    def take(self, pieces: list[Piece], tensors: dict[Any, "torch.Tensor"]) -> None:
        """Copy pieces from the buffer into contiguous tensors."""
        for name, start, place, count in pieces:
            copy_bytes(byte_view(tensors[name])[start : start + count], self.bytes[place : place + count])

    def close(self) -> None:
        """Unpin the buffer: its addresses may be reused."""
        if self.pinned:
            ctypes.CDLL("libcuda.so.1").cuMemHostUnregister(ctypes.c_void_p(self.bytes.data_ptr()))
            self.pinned = False
