"""Peaks of a GPU that floors rest on: bytes and operations a second, measured once and cached by UUID."""

import time
from collections.abc import Callable
from pathlib import Path

from .files import read_json, write_json
from .judge_floor import HOST_PEAKS

COPY_BYTES, MATRIX, REPEATS = 2**31, 8192, 8
# FP8 tensor cores run at twice the BF16 rate on every GPU that has them; block-scaled FP4 weights cannot beat
# that while the activations are FP8.
FP8_FACTOR = 2.0


def peaks_of(device: str, uuid: str, folder: Path) -> dict[str, float]:
    """bytes_per_second, bf16_flops, fp8_flops of the visible GPU; generous constants on the host."""
    if device == "cpu":
        return HOST_PEAKS
    path = folder / f"{uuid}.json"
    if not path.exists():
        write_json(path, measure())
    return read_json(path)


def measure() -> dict[str, float]:
    """A large device-to-device copy (bytes read plus written) and a large BF16 product.

    The best of several.
    """
    import torch

    copy_seconds = _copy_seconds()
    left, right = (torch.randn(MATRIX, MATRIX, device="cuda").bfloat16() for _ in range(2))
    matrix_seconds = _best(lambda: left @ right)
    flops = 2 * MATRIX**3 / matrix_seconds
    torch.cuda.empty_cache()
    return {
        "bytes_per_second": 2 * COPY_BYTES / copy_seconds,
        "bf16_flops": flops,
        "fp8_flops": FP8_FACTOR * flops,
        "measured": time.time(),
    }


def _copy_seconds() -> float:
    import torch

    source = torch.ones(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return _best(lambda: target.copy_(source))


def _best(run: Callable[[], object]) -> float:
    import torch

    times = []
    for _ in range(3 + REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times[3:])
