"""The least time a call can take: bytes that must move and operations that must be done, over measured peaks.

Every count is a lower bound. Caches and banks of which a call may read a part count only where the part is
known; outputs may stay in L2, so only what exceeds it counts. Rows of one call are counted from its own
inputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .definitions import tensor_inputs

# A time below this share of the floor is impossible: peaks are measured, and boost clocks vary by less than
# this.
REJECT_BELOW = 0.7
# Bounds no host reaches; they only make the rule testable without a GPU.
HOST_PEAKS = {"bytes_per_second": 2e12, "bf16_flops": 2e14, "fp8_flops": 4e14}
# Inputs of which a call need not read every byte.
PARTLY_READ = frozenset({"b", "b_scale", "kv", "k_cache", "v_cache", "k_index_cache", "kv8_pages",
                         "kv4_pages",
                         "page_table", "indices", "indices8", "indices4", "block_ids"})

Names = Mapping[str, Any]


def _seen_blocks(n: Names) -> int:
    return int(((n["query_pos"].long() + 1) // n["block_size"]).sum())


def _sparse_gqa(n: Names) -> float:
    tokens = 4 * int((n["block_ids"] >= 0).sum()) + int(((n["query_pos"].long() + 1) % 4).sum())
    return 4.0 * n["num_qo_heads"] * n["head_dim"] * tokens


def _sparse_mla(n: Names) -> float:
    import torch
    slots = torch.arange(n["K_slots"], device=n["indices"].device)
    used = (n["indices"][:, 0] >= 0) & (slots < n["topk_length"][:, None])
    return 4.0 * n["H"] * n["D"] * int(used.sum())


def _mixed_mla(n: Names) -> float:
    return 4.0 * n["H"] * n["D"] * (int((n["indices8"] >= 0).sum()) + int((n["indices4"] >= 0).sum()))


def _neighborhood(n: Names) -> float:
    return 4.0 * n["B"] * n["T"] * n["Y"] * n["X"] * n["H"] * n["D"] * n["WT"] * n["WY"] * n["WX"]


def _causal(n: Names) -> float:
    keys = n["T"] * (n["T"] + n["P"]) if "P" in n else int(n["kv_end"].long().sum())
    return 4.0 * n["H"] * n["D"] * keys


# op_type -> (operations from axes and inputs, key of the peak). GDN is bound by its state: bytes decide.
OPERATIONS: dict[str, tuple[Callable[[Names], float], str]] = {
    "gemm": (lambda n: 2.0 * n["M"] * n["N"] * n["K"], "bf16_flops"),
    "grouped_gemm": (lambda n: 2.0 * n["M"] * n["N"] * n["K"], "fp8_flops"),
    "expert_router": (lambda n: 2.0 * n["M"] * n["E"] * n["H"], "bf16_flops"),
    "dense_attention": (lambda n: 4.0 * n["B"] * n["H"] * n["Nq"] * n["Nk"] * n["D"], "bf16_flops"),
    "block_causal_attention": (_causal, "bf16_flops"),
    "neighborhood_attention": (_neighborhood, "bf16_flops"),
    "sparse_gqa": (_sparse_gqa, "bf16_flops"),
    "sparse_index": (lambda n: 2.0 * n["num_heads"] * n["head_dim"] * _seen_blocks(n), "bf16_flops"),
    "sparse_mla": (_sparse_mla, "bf16_flops"),
    "mixed_mla": (_mixed_mla, "fp8_flops"),
}


@dataclass(frozen=True)
class Floor:
    """bytes and operations that the call cannot avoid, and the time that they take at the device's peaks."""

    bytes: int
    operations: float
    microseconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def floor_of(definition: dict, axes: dict[str, int], inputs: Names, output_bytes: int,
             peaks: dict[str, float],
             l2_bytes: int) -> Floor:
    """The floor of one workload; `axes` are all axes, `inputs` the tensors by name."""
    sizes = {name: inputs[name].numel() * inputs[name].element_size() for name,
             _ in tensor_inputs(definition)}
    moved = sum(size for name, size in sizes.items() if not _partly(definition, name))
    moved += max(0, output_bytes - l2_bytes)
    count, peak = OPERATIONS.get(definition["op_type"], (lambda names: 0.0, "bf16_flops"))
    operations = count({**axes, **inputs})
    seconds = max(moved / peaks["bytes_per_second"], operations / peaks[peak])
    return Floor(moved, operations, seconds * 1e6)


def _partly(definition: dict, name: str) -> bool:
    return name in PARTLY_READ and definition["op_type"] != "gemm"
