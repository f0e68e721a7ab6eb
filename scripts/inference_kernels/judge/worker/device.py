"""What differs between devices in a worker: poisoned memory, synchronising, timing one call, graphs.

`HostDevice` (--gpu cpu) times with the host clock and exists so that every rule can be tested without a GPU; its
figures are labelled and never compared with those of `CudaDevice` (cuda.py).
"""

import ctypes
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inference_kernels.core.tensors import byte_view
from inference_kernels.judge.worker.cuda import CudaDevice

if TYPE_CHECKING:
    import torch

# Held from before any solution is imported.
CLOCK = time.perf_counter_ns
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_PERTURB = -1, -3, -6
# The largest values that glibc takes. Freed memory stays with the process: otherwise back-to-back calls pay for fresh
# pages each time and take three times as long as single ones.
NEVER_TRIM, LARGEST_MMAP_THRESHOLD = 2**31 - 1, 2**25


class HostDevice:
    """CPU tensors and the host clock. `capture` keeps the plain function: there is no graph to replay."""

    name = "cpu"
    timer = "host_clock"
    cache_policy = "not controlled"

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        # glibc only: makes malloc fill what it hands out, so that memory never written to is seen as such.
        self._mallopt = getattr(library, "mallopt", None)
        if self._mallopt:
            self._mallopt(M_TRIM_THRESHOLD, NEVER_TRIM)
            self._mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)

    def describe(self) -> dict[str, Any]:
        import platform

        return {
            "device": platform.processor() or platform.machine(),
            "timer": self.timer,
            "cache_policy": self.cache_policy,
        }

    def poison_free_memory(self, byte: int, sizes: list[int]) -> None:
        """Fill fresh memory with `byte` from now on; 0 switches it off.

        glibc writes the complement of its setting, and 0 means off there: 0xFF becomes 0xFE.
        """
        if self._mallopt:
            self._mallopt(M_PERTURB, min(byte, 0xFE) ^ 0xFF if byte else 0)

    def synchronize(self) -> None:
        return

    def reset_persisting_l2(self) -> None:
        return

    def time_call(self, run: Callable[[], Any]) -> tuple[Any, float, float]:
        """Call; return the result, nanoseconds, and nanoseconds of work still under way afterwards."""
        start = CLOCK()
        result = run()
        return result, float(CLOCK() - start), 0.0

    def time_replay(self, replay: Callable[[], Any]) -> tuple[float, float]:
        _, elapsed, tail = self.time_call(replay)
        return elapsed, tail

    def launch_overhead_ns(self) -> float:
        return 0.0

    def capture(self, launch: Callable[[], Any], warmup: int) -> tuple[Callable[[], Any], Any]:
        """Prepare a launch; return what a timed launch calls, and outputs that it rewrites in place or None."""
        for _ in range(warmup):
            launch()
        return launch, None


def fill_bytes(tensor: "torch.Tensor", byte: int) -> None:
    """Set every byte of a dense tensor to `byte`."""
    byte_view(tensor).fill_(byte)


def make_device(name: str) -> HostDevice | CudaDevice:
    return HostDevice() if name == "cpu" else CudaDevice()
