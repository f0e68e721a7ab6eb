"""The least time a call can take: bytes that must move and operations that must be done, over measured peaks.

Every count is a lower bound. Of caches and expert banks only the parts count that the call's own indices name, each
once; of outputs only what exceeds L2, where the rest may stay.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from inference_kernels.core.definitions import tensor_inputs
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_json, write_json
from inference_kernels.core.types import Definition
from inference_kernels.judge.types import FloorRecord

if TYPE_CHECKING:
    import torch

# A time below this share of the floor is impossible: peaks are measured, and boost clocks vary by less than this.
REJECT_BELOW = 0.7
# Bounds no host reaches; they only make the rule testable without a GPU.
HOST_PEAKS = {"bytes_per_second": 2e12, "bf16_flops": 2e14, "fp8_flops": 4e14}

Names = Mapping[str, Any]


def _seen_blocks(n: Names) -> int:
    return int(((n["query_pos"].long() + 1) // n["block_size"]).sum())


def _sparse_gqa(n: Names) -> float:
    tokens = 4 * int((n["block_ids"] >= 0).sum()) + int(((n["query_pos"].long() + 1) % 4).sum())
    return 4.0 * n["num_qo_heads"] * n["head_dim"] * tokens


def _sparse_mla(n: Names) -> float:
    return 4.0 * n["H"] * n["D"] * _scanned(n["indices"][:, 0], n["topk_length"]).numel()


def _mixed_mla(n: Names) -> float:
    return 4.0 * n["H"] * n["D"] * (int((n["indices8"] >= 0).sum()) + int((n["indices4"] >= 0).sum()))


def _neighborhood(n: Names) -> float:
    return 4.0 * n["B"] * n["T"] * n["Y"] * n["X"] * n["H"] * n["D"] * n["WT"] * n["WY"] * n["WX"]


def _causal(n: Names) -> float:
    keys = n["T"] * (n["T"] + n["P"]) if "P" in n else int(n["kv_end"].long().sum())
    return 4.0 * n["H"] * n["D"] * keys


def _unique(values: Any) -> int:
    return int(values.unique().numel())


def _row_bytes(tensor: Any, leading: int = 1) -> int:
    """Count the bytes of one entry along the first `leading` axes."""
    return tensor.element_size() * math.prod(tensor.shape[leading:])


def _scanned(indices: Any, length: Any) -> Any:
    """Select the indices of all slots that are scanned and not empty."""
    import torch

    slots = torch.arange(indices.shape[-1], device=indices.device)
    return indices[(indices >= 0) & (slots < length[:, None])]


def _read_experts(n: Names) -> int:
    return _unique(n["expert_ids"]) * (_row_bytes(n["b"]) + _row_bytes(n["b_scale"]))


def _read_latents(n: Names) -> int:
    return _unique(_scanned(n["indices"][:, 0], n["topk_length"])) * _row_bytes(n["kv"])


def _read_pages(n: Names) -> int:
    """Count payloads alone: one byte per number in FP8, half a byte in FP4."""
    return (
        _unique(_scanned(n["indices8"], n["length8"])) * n["D"]
        + _unique(_scanned(n["indices4"], n["length4"])) * n["D"] // 2
    )


def _read_blocks(n: Names) -> int:
    """Count keys and values of the selected blocks; the tokens of incomplete blocks come on top."""
    listed = n["block_ids"] >= 0
    place = n["query_seq"].long()[:, None] * 2**32 + n["block_ids"].long()
    return _unique(place[listed]) * 4 * (_row_bytes(n["k_cache"], 2) + _row_bytes(n["v_cache"], 2))


def _read_index_keys(n: Names) -> int:
    """Count the keys that the last row of each sequence sees."""
    import torch

    seen = torch.zeros(int(n["query_seq"].max()) + 1, dtype=torch.int64, device=n["query_seq"].device)
    blocks = (n["query_pos"].long() + 1) // n["block_size"]
    return int(seen.scatter_reduce(0, n["query_seq"].long(), blocks, "amax").sum()) * _row_bytes(n["k_index_cache"], 2)


@dataclass(frozen=True)
class Bound:
    """What a call of an op_type cannot avoid; the functions take axes and input tensors by name.

    operations: their least number, None where bytes decide; peak: of these operations. partly: inputs of which a call
    need not read every byte; read: the bytes of those that it must read. All other inputs are read whole.
    """

    operations: Callable[[Names], float] | None
    peak: str = "bf16_flops"
    read: Callable[[Names], int] | None = None
    partly: tuple[str, ...] = ()


def _product(n: Names) -> float:
    return 2.0 * n["M"] * n["N"] * n["K"]


BOUNDS = {
    "gemm": Bound(_product),
    "grouped_gemm": Bound(_product, "fp8_flops", _read_experts, ("b", "b_scale")),
    "expert_router": Bound(lambda n: 2.0 * n["M"] * n["E"] * n["H"]),
    "dense_attention": Bound(lambda n: 4.0 * n["B"] * n["H"] * n["Nq"] * n["Nk"] * n["D"]),
    "block_causal_attention": Bound(_causal),
    "neighborhood_attention": Bound(_neighborhood),
    "sparse_gqa": Bound(_sparse_gqa, read=_read_blocks, partly=("k_cache", "v_cache", "page_table", "block_ids")),
    "sparse_index": Bound(
        lambda n: 2.0 * n["num_heads"] * n["head_dim"] * _seen_blocks(n),
        read=_read_index_keys,
        partly=("k_index_cache", "page_table"),
    ),
    "sparse_mla": Bound(_sparse_mla, read=_read_latents, partly=("kv", "indices")),
    "mixed_mla": Bound(_mixed_mla, "fp8_flops", _read_pages, partly=("kv8_pages", "kv4_pages", "indices8", "indices4")),
    "gdn": Bound(None),  # its state decides
}


def bound_of(definition: Definition) -> Bound:
    """Return the row of a definition's op_type; SchemaError if there is none."""
    op_type = definition["op_type"]
    if op_type not in BOUNDS:
        raise SchemaError(
            expected=f"an op_type with a floor: {', '.join(sorted(BOUNDS))}",
            found=op_type,
            where=definition["name"],
            remedy="add its row to BOUNDS in judge/floor.py",
        )
    return BOUNDS[op_type]


@dataclass(frozen=True)
class Floor:
    """Bytes and operations that a call cannot avoid, and the time they take at the device's peaks."""

    bytes: int
    operations: float
    microseconds: float

    def to_json(self) -> FloorRecord:
        return cast(FloorRecord, asdict(self))


def floor_of(
    definition: Definition,
    axes: dict[str, int],
    inputs: Mapping[str, "torch.Tensor"],
    output_bytes: int,
    peaks: Mapping[str, float],
    l2_bytes: int,
) -> Floor:
    """Compute the floor of one workload; `axes` are all axes. SchemaError for an op_type without a bound."""
    bound, names = bound_of(definition), {**axes, **inputs}
    moved = max(0, output_bytes - l2_bytes)
    moved += sum(_row_bytes(inputs[name], 0) for name, _ in tensor_inputs(definition) if name not in bound.partly)
    moved += bound.read(names) if bound.read else 0
    operations = bound.operations(names) if bound.operations else 0.0
    seconds = max(moved / peaks["bytes_per_second"], operations / peaks[bound.peak])
    return Floor(moved, operations, seconds * 1e6)


COPY_BYTES, MATRIX, REPEATS = 2**31, 8192, 8
# FP8 tensor cores run at twice the BF16 rate on every GPU that has them; block-scaled FP4 weights cannot beat
# that while the activations are FP8.
FP8_FACTOR = 2.0


def peaks_of(device: str, uuid: str, folder: Path) -> dict[str, float]:
    """Read the peaks of the visible GPU, or measure and keep them; generous constants on the host.

    Keys: bytes_per_second, bf16_flops, fp8_flops.
    """
    if device == "cpu":
        return HOST_PEAKS
    path = folder / f"{uuid}.json"
    if not path.exists():
        write_json(path, measure())
    return read_json(path)


def measure() -> dict[str, float]:
    """Time a large device-to-device copy (bytes read plus written) and a large BF16 product; the best of several."""
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
