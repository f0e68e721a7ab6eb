#!/usr/bin/env python3
"""The judge's own accuracy and cost on a GPU: launch times against CUPTI durations, a solution against
itself.

Prints one table row a kernel (microseconds: the judge's median, the summed kernel durations that torch's
profiler reads from CUPTI, their difference), then the geometric means of repeated self-duels and the seconds
a judged workload costs.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import generated_tree  # noqa: F401  (puts scripts/ on the path)
import torch
from inference_kernels.judge_cuda import CudaDevice

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
REPLAYS = 51


def kernels() -> dict:
    """Six launches from about 5 us to 5 ms on a current data-centre GPU."""
    def copy(megabytes: int):
        source = torch.ones(megabytes * 2**18, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def product(size: int):
        left, right = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        target = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=target)
    return {"copy 1 MiB": copy(1), "copy 32 MiB": copy(32), "copy 256 MiB": copy(256),
            "product 1024": product(1024), "product 4096": product(4096), "product 12288": product(12288)}


def cupti_us(device: CudaDevice, replay) -> float:
    """Median over replays of the summed durations of the launch's own kernels, all from a cold cache."""
    own = {event.name for event in _profiled(replay)}
    sums = []
    for _ in range(REPLAYS):
        def cold() -> None:
            device.flush()
            replay()
        events = [event for event in _profiled(cold) if event.name in own]
        sums.append(sum(event.device_time for event in events))
    return statistics.median(sums)


def _profiled(run) -> list:
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    return [event for event in seen.events() if event.device_time > 0]


def accuracy() -> list[dict]:
    device, rows = CudaDevice(), []
    empty, _ = device.capture(torch.zeros(1, device="cuda").zero_, 3)
    empty_us = statistics.median(device.time_replay(empty)[0] for _ in range(REPLAYS)) / 1e3
    for name, launch in kernels().items():
        replay, _ = device.capture(launch, 3)
        judge_us = statistics.median(device.time_replay(replay)[0] for _ in range(REPLAYS)) / 1e3
        truth = cupti_us(device, replay)
        rows.append({"kernel": name, "judge us": round(judge_us, 2), "CUPTI us": round(truth, 2),
                     "difference us": round(judge_us - truth, 2),
                     "percent": round(100 * (judge_us / truth - 1), 1),
                     "empty graph us": round(empty_us, 2)})
    return rows


def self_duels(count: int) -> dict:
    """Geometric means of the toy baseline against itself, and the wall time a judged workload takes."""
    import judge_toy
    import toy
    from inference_kernels.definitions import load_definition
    from inference_kernels.judge_duel import duel, verdict
    from inference_kernels.judge_engine import Judge, Options
    from inference_kernels.judge_gpu import nvidia_smi, resolve

    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    means, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        root = judge_toy.judge_root(Path(folder), (1024,), iterations=50)
        definition = load_definition(root, toy.NAME)
        with Judge(Options(root, "cuda", resolve(f"GPU-{uuid}", nvidia_smi("-L")))) as judge:
            for _ in range(count):
                begun = time.monotonic()
                one, other = (judge_toy.solution(judge_toy.HONEST, name) for name in ("one", "other"))
                result = verdict(list(duel(judge, definition, one, other, ())))
                seconds.append(time.monotonic() - begun)
                means.append(result["geometric_mean"])
    return {"geometric_means": means, "seconds_per_duel": statistics.median(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duels", type=int, default=10, help="self-duels (default: 10)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: bench_judge.py needs a CUDA device")
    rows = accuracy()
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": rows} | self_duels(options.duels)))


if __name__ == "__main__":
    main()
