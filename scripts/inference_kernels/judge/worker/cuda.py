"""The CUDA side of a worker: events around graph replays, cold L2, poisoned allocator memory."""

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

from inference_kernels.judge.verdicts import Rejected

# Held from before any solution is imported, and apart from the host device's: replacing that one changes nothing here.
CLOCK = time.perf_counter_ns
# CUlimit of the driver API: bytes of L2 set aside for persisting accesses.
LIMIT_PERSISTING_L2 = 6
FLUSH_SHARE_OF_L2, POISON_COPIES, OVERHEAD_REPLAYS = 4, 3, 40
# The device waits for these cycles, about 0.2 ms, before the flush: a late host can queue all that follows. Without it,
# on an H200, whose flush takes some 60 us, up to a tenth of the launches of small kernels took several times as long as
# the others; with it few do (`~` in docs/baselines.md).
LEAD_CYCLES = 400_000


class CudaDevice:
    """The visible GPU. Launches: CUDA events around one replay of a captured graph, cold L2. Calls: eager."""

    name = "cuda"
    timer = "cuda_events"
    cache_policy = "cold_l2"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.cuda.init()
        self.properties = torch.cuda.get_device_properties(0)
        self._event, self._synchronize = torch.cuda.Event, torch.cuda.synchronize
        self._sum, self._wait = torch.sum, torch.cuda._sleep
        self._driver = ctypes.CDLL("libcuda.so.1")
        l2 = self.properties.L2_cache_size
        self._flush_buffer = torch.zeros(max(FLUSH_SHARE_OF_L2 * l2, 2**28) // 4, device="cuda")
        self._flush_result = torch.zeros((), device="cuda")
        self.reset_persisting_l2()

    def describe(self) -> dict[str, Any]:
        return {
            "device": self.properties.name,
            "uuid": str(self.properties.uuid),
            "timer": self.timer,
            "cache_policy": self.cache_policy,
            "l2_bytes": self.properties.L2_cache_size,
            "memory_bytes": self.properties.total_memory,
            "cuda": self.torch.version.cuda,
        }

    def poison_free_memory(self, byte: int, sizes: list[int]) -> None:
        """Fill and free blocks of the outputs' sizes, so that the caching allocator hands out the poison."""
        if not byte:
            return
        for size in sorted(set(sizes), reverse=True):
            blocks = [
                self.torch.empty(max(size, 1), dtype=self.torch.uint8, device="cuda") for _ in range(POISON_COPIES)
            ]
            for block in blocks:
                block.fill_(byte)
        self._synchronize()

    def synchronize(self) -> None:
        self._synchronize()

    def reset_persisting_l2(self) -> None:
        """Release lines that an earlier launch pinned in L2, and the carve-out itself."""
        self._driver.cuCtxResetPersistingL2Cache()
        self._driver.cuCtxSetLimit(LIMIT_PERSISTING_L2, ctypes.c_size_t(0))

    def flush(self) -> None:
        """Queue a read of several times the L2: it evicts everything and leaves only clean lines."""
        self._sum(self._flush_buffer, dim=0, out=self._flush_result)

    def time_call(self, run: Callable[[], Any]) -> tuple[Any, float, float]:
        """Call; return the result, nanoseconds between events around it, and from then until the device was idle."""
        self.flush()
        self._synchronize()
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        start.record()
        result = run()
        end.record()
        return result, *self._finish(start, end)

    def time_replay(self, replay: Callable[[], Any]) -> tuple[float, float]:
        """Queue wait, flush, events and replay together, so that the launch latency of the host is not timed."""
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._wait(LEAD_CYCLES)
        self.flush()
        start.record()
        replay()
        end.record()
        return self._finish(start, end)

    def launch_overhead_ns(self) -> float:
        """Measure what events around a replay show beyond its kernels' own durations as CUPTI records them.

        The mean of a plain kernel and a matrix product, which takes most of the shared memory and starts later
        (by about 0.5 us on an H200). 0 where CUPTI may not trace: then launch times contain the overhead.
        """
        torch = self.torch
        values, factor = torch.zeros(2**18, device="cuda"), torch.ones(1024, 1024, device="cuda").bfloat16()
        target = torch.empty_like(factor)
        found = [
            self._overhead_ns(launch)
            for launch in (lambda: values.add_(1), lambda: torch.mm(factor, factor, out=target))
        ]
        return statistics.fmean(found)

    def _overhead_ns(self, launch: Callable[[], Any]) -> float:
        replay, _ = self.capture(launch, 3)
        shown = statistics.median(self.time_replay(replay)[0] for _ in range(OVERHEAD_REPLAYS))
        own = self.kernel_durations_ns(replay, OVERHEAD_REPLAYS)
        return max(0.0, shown - statistics.median(own)) if own else 0.0

    def kernel_durations_ns(self, replay: Callable[[], Any], count: int) -> list[float]:
        """Sum the durations of the kernels of each of `count` replays from a cold cache, as CUPTI records them.

        The flush before a replay is told apart by its place: a launch may hold a memset too. Empty without CUPTI.
        """
        own = len(self._traced(replay))

        def cold() -> None:
            for _ in range(count):
                self.flush()
                replay()
                self._synchronize()

        durations = [duration for _, duration in self._traced(cold)] if own else []
        each = len(durations) // count  # the flush's kernels, then the replay's own
        if not own or own > each or each * count != len(durations):
            return []
        return [sum(durations[last - own : last]) for last in range(each, len(durations) + 1, each)]

    def _traced(self, run: Callable[[], Any]) -> list[tuple[str, float]]:
        """List (kernel's name, nanoseconds) in the order of their starts."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            self._synchronize()
        kernels = sorted(
            (event for event in seen.events() if event.device_time > 0), key=lambda event: event.time_range.start
        )
        return [(event.name, 1e3 * event.device_time) for event in kernels]

    def _finish(self, start: Any, end: Any) -> tuple[float, float]:
        end.synchronize()
        done = CLOCK()
        self._synchronize()
        return start.elapsed_time(end) * 1e6, float(CLOCK() - done)

    def capture(self, launch: Callable[[], Any], warmup: int) -> tuple[Callable[[], Any], Any]:
        """Warm up on the capture stream, then capture one launch. Rejected: not_capturable."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warmup):
                launch()
        torch.cuda.current_stream().wait_stream(stream)
        self._synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                result = launch()
        except RuntimeError as error:
            raise Rejected("not_capturable", str(error)) from error
        self._synchronize()

        # The graph reads the tensors that the launch holds, and does not keep them itself: the replay holds the launch.
        def replay(held: Callable[[], Any] = launch) -> None:
            graph.replay()

        return replay, result
