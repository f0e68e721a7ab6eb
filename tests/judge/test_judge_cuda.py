"""Kernel durations read from a trace, with a stand-in for CUPTI."""

import pytest

from inference_kernels.judge.worker.cuda import CudaDevice

FLUSH = [("Memset (Device)", 700.0), ("reduce", 60_000.0)]


class TracedDevice(CudaDevice):
    """A device that records what it is asked to run as kernels, without a GPU."""

    def __init__(self):
        self.ran: list[tuple[str, float]] = []
        self._synchronize = lambda: None

    def flush(self) -> None:
        self.ran += FLUSH

    def _traced(self, run):
        self.ran = []
        run()
        return self.ran


@pytest.mark.parametrize("own", [[("gemm", 5000.0)], [("Memset (Device)", 700.0), ("gemm", 5000.0)], FLUSH])
def test_a_replay_is_told_apart_from_the_flush_before_it(own):
    device = TracedDevice()

    def replay() -> None:
        device.ran += own

    assert device.kernel_durations_ns(replay, 3) == [sum(duration for _, duration in own)] * 3


def test_without_a_complete_trace_there_are_no_durations():
    device = TracedDevice()
    assert device.kernel_durations_ns(lambda: None, 3) == []
    times = iter(range(100))
    assert device.kernel_durations_ns(lambda: device.ran.extend([("k", 1.0)] * (next(times) != 2)), 3) == []
