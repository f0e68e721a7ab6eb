"""Generate a dataset tree with the counts of the published dataset: valid records, meaningless tensors.

1,104 workloads of the 21 definitions at 5,493 paths and about 146 GB, with the published counts per family.
Tensor files are sparse (`holes`: almost no disk, read like any other), written out (`bytes`) or Git LFS
pointers (`pointers`). The records have the classes `published` and `contest` so that tools meet both; the
model is called `benchmark`, and nothing here is captured data.
"""

import hashlib
import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

from generated_tree import ENGINE, MODEL, copy_contracts
from inference_kernels.core.constraints import names_in
from inference_kernels.core.definitions import const_axes, load_definition, resolve_shape, var_axes
from inference_kernels.core.layout import POINTER_FIRST_LINE
from inference_kernels.core.records import tensor_reference, workload_uuid, write_captures, write_workloads
from inference_kernels.core.tensors import DTYPES, tensor_file_header

# definition -> (workloads, auxiliary tensors of all of them, axes that scale, other axes).
PLAN = {
    "dense_gemm_bf16_nt_n4096_k4096": (31, 0, {"M": 4096}, {}),
    "dense_gemm_bf16_nt_n12288_k4096": (31, 0, {"M": 4096}, {}),
    "dense_gemm_bf16_nt_n4096_k12288": (31, 0, {"M": 4096}, {}),
    "grouped_gemm_fp8_fp4_e384_n4608_k5120_g32": (52, 0, {"M": 8192}, {}),
    "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32": (52, 0, {"M": 8192}, {}),
    "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512": (42, 0, {"N4": 2048, "N8": 64}, {"B": 8, "P8": 64, "P4": 64}),
    "sparse_mla_prefill_bf16_h64_d512_s128": (15, 0, {"S": 2048, "T": 4096}, {}),
    "sparse_mla_prefill_bf16_h64_d512_s640": (15, 0, {"S": 2048, "T": 4096}, {}),
    "expert_router_bf16_h5120_e384_top6": (50, 50, {"M": 2048}, {}),
    "sparse_index_select_bf16_h4_d128_topk512_blk4": (
        192,
        536,
        {"num_tokens": 4096, "num_pages": 1024},
        {"num_seqs": 1, "page_size": 64, "max_pages": 1024},
    ),
    "sparse_gqa_bf16_h24_kv2_d256_topk512_blk4": (
        192,
        537,
        {"num_tokens": 4096, "num_pages": 512},
        {"num_seqs": 1, "page_size": 64, "max_pages": 512},
    ),
    "gdn_decode_qk4_v8_d128_k_last": (77, 0, {"batch_size": 64}, {}),
    "gdn_prefill_qk4_v8_d128_k_last": (77, 0, {"total_seq_len": 8192}, {"num_seqs": 1, "len_cu_seqlens": 2}),
    "block_causal_attention_empty_prefix_h32_d128": (20, 0, {"S": 4096}, {}),
    "block_causal_attention_cached_prefix_h32_d128": (20, 0, {"T": 4096, "P": 512}, {}),
    "dense_attention_noncausal_h32_d128": (81, 0, {"Nq": 11160, "Nk": 11160}, {"B": 1}),
    "dense_attention_noncausal_h32_d64": (81, 0, {"Nq": 11160, "Nk": 11160}, {"B": 1}),
    "neighborhood_attention_3d_h32_d64_w3x7x7": (12, 0, {"X": 64}, {"B": 1, "T": 16, "Y": 32}),
    "neighborhood_attention_3d_h16_d64_w3x7x7": (11, 0, {"X": 64}, {"B": 1, "T": 16, "Y": 32}),
    "neighborhood_attention_3d_h8_d64_w3x5x5": (11, 0, {"X": 64}, {"B": 1, "T": 16, "Y": 32}),
    "neighborhood_attention_3d_h4_d64_w11x11x11": (11, 0, {"X": 64}, {"B": 1, "T": 16, "Y": 32}),
}
# Two expert banks of 2.4 and 4.8 GB for any number of workloads: too much for small trees.
BANKS = tuple(name for name in PLAN if name.startswith("grouped_gemm"))
SMALLEST = 16
SHAPES = 12
# Values of inputs that constraints read; `kv_end` counts up, the others are zero.
VALUES = {"length8": 1, "length4": 1, "seq_lens": 1, "indices8": -1, "indices4": -1, "block_ids": -1}
BLOCK = 2**20


@dataclass(frozen=True)
class Tensor:
    """One tensor file. end: its last bytes, after zeros; filled: a block derived from `end`, repeated, instead."""

    dtype: str
    shape: tuple[int, ...]
    end: bytes
    filled: bool = False

    @cached_property
    def header(self) -> bytes:
        return tensor_file_header(self.dtype, self.shape)

    @property
    def data_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype][1]

    @cached_property
    def sha256(self) -> str:
        if self.filled:
            digest = hashlib.sha256(self.header)
            for piece in self._pieces():
                digest.update(piece)
        else:
            digest = _hash_of_hole(self.header, self.data_bytes - len(self.end)).copy()
            digest.update(self.end)
        return digest.hexdigest()

    def _pieces(self) -> Iterator[bytes]:
        block, left = hashlib.sha256(self.end).digest() * (BLOCK // 32), self.data_bytes
        while left > 0:
            yield block[:left]
            left -= BLOCK

    def write(self, path: Path) -> None:
        with open(path, "wb") as stream:
            stream.write(self.header)
            if self.filled:
                stream.writelines(self._pieces())
            else:
                stream.truncate(len(self.header) + self.data_bytes)
                stream.seek(-len(self.end), os.SEEK_END)
                stream.write(self.end)


@cache
def _hash_of_hole(header: bytes, zeros: int) -> Any:
    digest = hashlib.sha256(header)
    for start in range(0, zeros, BLOCK):
        digest.update(bytes(min(BLOCK, zeros - start)))
    return digest


@dataclass(frozen=True)
class Tree:
    """A tree to generate. share: of each definition's workloads; rows: factor of the axes that scale."""

    root: Path
    share: float = 1.0
    rows: float = 1.0
    fill: str = "holes"
    without: tuple[str, ...] = ()

    def write(self) -> None:
        """Write the tree or extend a smaller one, whose tensors are not written again."""
        if not (self.root / "definitions").exists():
            copy_contracts(self.root)
        records = []
        for name, (count, *_) in PLAN.items():
            if name not in self.without:
                definition = load_definition(self.root, name)
                pairs = [self._call(definition, number) for number in range(ceil(count * self.share))]
                write_workloads(self.root, definition, [workload for workload, _ in pairs])
                records += [record for _, record in pairs]
        write_captures(self.root, records)

    def _axes(self, definition: dict, number: int) -> dict[str, int]:
        """Choose the sizes of a call; the first axis that scales takes SHAPES different ones."""
        _, _, scaled, others = PLAN[definition["name"]]
        sizes = {axis: max(int(size * self.rows), SMALLEST) for axis, size in scaled.items()} | others
        return sizes | {next(iter(scaled)): sizes[next(iter(scaled))] + number % SHAPES}

    def _call(self, definition: dict, number: int) -> tuple[dict, dict]:
        """Generate (workload, record) of one call."""
        name, axes = definition["name"], self._axes(definition, number)
        sizes, contest = const_axes(definition) | axes, name.startswith("gdn_")
        inputs, outputs = {}, {}
        for key, spec in definition["inputs"].items():
            if spec["shape"] is None:
                inputs[key] = {"type": "scalar", "value": 1.0}
            else:
                tensor = self._input(definition, key, sizes, number)
                inputs[key] = {"type": "safetensors"} | self._item(name, tensor)
        for key, spec in ({} if contest else definition["outputs"]).items():
            tensor = self._marked(spec["dtype"], resolve_shape(spec, sizes), f"{name} {key} {number}")
            outputs[key] = self._item(name, tensor)
        count, total, *_ = PLAN[name]
        places = range(total * number // count, total * (number + 1) // count)
        extra = {
            f"engine_{place}": self._item(name, self._marked("float32", (SMALLEST,), f"{name} {place}"))
            for place in places
        }
        workload = {"axes": axes, "inputs": inputs, "uuid": workload_uuid(name, inputs)}
        return workload, record(name, workload, outputs, extra, number)

    def _input(self, definition: dict, key: str, sizes: dict[str, int], number: int) -> Tensor:
        """Choose values that satisfy the constraints that read them; a weight is the same in all calls."""
        spec = definition["inputs"][key]
        shape = resolve_shape(spec, sizes)
        read = {word for rule in definition["constraints"] for word in names_in(rule)}
        if key == "cu_seqlens":
            return Tensor(spec["dtype"], shape, struct.pack("<2q", 0, sizes["total_seq_len"]))
        if key == "kv_end":
            return Tensor(spec["dtype"], shape, array("i", range(1, shape[0] + 1)).tobytes())
        if key in read or spec["dtype"] == "bool":
            values = struct.pack("<i", VALUES[key]) * prod(shape) if key in VALUES else b""
            return Tensor(spec["dtype"], shape, values)
        own = set(spec["shape"]) & set(var_axes(definition))
        return self._marked(spec["dtype"], shape, f"{definition['name']} {key} {number if own else 'weight'}")

    def _marked(self, dtype: str, shape: tuple[int, ...], mark: str) -> Tensor:
        return Tensor(dtype, shape, hashlib.sha256(mark.encode()).digest()[:8], self.fill == "bytes")

    def _item(self, name: str, tensor: Tensor) -> dict[str, str]:
        """Write the tensor file, or its pointer, and refer to it."""
        text = f"blob/workloads/{name}/{tensor.sha256}.safetensors"
        path, size = self.root / text, len(tensor.header) + tensor.data_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.fill == "pointers":
            path.write_text(f"{POINTER_FIRST_LINE.decode()}\noid sha256:{tensor.sha256}\nsize {size}\n")
        elif not path.exists() or path.stat().st_size != size:
            tensor.write(path)
        return tensor_reference(text)


def record(name: str, workload: dict, outputs: dict, auxiliary: dict, number: int) -> dict:
    figures = {"min": -1.0, "max": 1.0, "zero_share": 0.0, "non_finite": 0}
    tensors = [key for key, item in workload["inputs"].items() if item["type"] == "safetensors"]
    errors = {key: {"tolerance_used": (number % 97 + 1) / 100} for key in outputs}
    return {
        "workload": workload["uuid"],
        "definition": name,
        "class": "published" if outputs else "contest",
        "model": MODEL,
        "engine": ENGINE,
        "hardware": {"device": "none"},
        "request": {"case": "benchmark"},
        "operation": {"call_path": "none", "layer": number, "step": None, "phase": "none", "ranks_gathered": 1},
        "adaptations": [],
        "outputs": outputs,
        "auxiliary": auxiliary,
        "statistics": {key: figures for key in [*tensors, *outputs]},
        "replay": {"criterion": {}, "device": "none", "errors": errors, "passed": True},
    }


def allocated_bytes(root: Path) -> int:
    """Sum the bytes that a tree's files take on disk."""
    return sum(os.lstat(Path(folder, name)).st_blocks * 512 for folder, _, names in os.walk(root) for name in names)
