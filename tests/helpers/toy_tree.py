"""A copy of the toy dataset with handles for damaging it in one place while the rest stays consistent."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

from helpers.toy import NAME
from inference_kernels.core.files import write_json, write_jsonl
from inference_kernels.core.records import workload_uuid
from inference_kernels.core.tensors import tensor_file_header

WORKLOADS = f"workloads/toy/{NAME}.jsonl"
DEFINITION = f"definitions/toy/{NAME}.json"
TASK = f"tasks/{NAME}.json"
CAPTURES = "captures.jsonl"


def tensor_file(dtype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    return tensor_file_header(dtype, shape) + data


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """A safetensors file with any bytes as header."""
    return struct.pack("<Q", len(header)) + header + data


class Tree:
    """`root` holds two workloads: line 1 and line 2 of WORKLOADS, with their records in CAPTURES."""

    def __init__(self, root: Path):
        self.root = root

    def rows(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.root / name).read_text().splitlines()]

    def edit_rows(self, name: str, change: Callable[[list[dict]], None]) -> None:
        rows = self.rows(name)
        change(rows)
        write_jsonl(self.root / name, rows)

    def edit_workload(self, change: Callable[[dict], None], row: int = 0) -> None:
        self.edit_rows(WORKLOADS, lambda rows: change(rows[row]["workload"]))

    def edit_record(self, change: Callable[[dict], None], row: int = 0) -> None:
        """Change the record of workload line `row + 1`."""
        uuid = self.rows(WORKLOADS)[row]["workload"]["uuid"]
        self.edit_rows(CAPTURES, lambda rows: change(next(item for item in rows if item["workload"] == uuid)))

    def edit_json(self, name: str, change: Callable[[dict], None]) -> None:
        value = json.loads((self.root / name).read_text())
        change(value)
        write_json(self.root / name, value)

    def input(self, name: str, row: int = 0) -> Path:
        return self.root / self.rows(WORKLOADS)[row]["workload"]["inputs"][name]["path"]

    def output(self, name: str, row: int = 0) -> Path:
        """Name the file of a saved output of workload line `row + 1`."""
        uuid = self.rows(WORKLOADS)[row]["workload"]["uuid"]
        record = next(item for item in self.rows(CAPTURES) if item["workload"] == uuid)
        return self.root / record["outputs"][name]["path"]

    def axis(self, row: int = 0) -> int:
        return self.rows(WORKLOADS)[row]["workload"]["axes"]["N"]

    def readdress(self, name: str, content: bytes, row: int = 0) -> Path:
        """Replace an input by `content`; hash, path and UUIDs are right, only the content is wrong."""
        old = self.input(name, row)
        new = old.with_name(f"{hashlib.sha256(content).hexdigest()}.safetensors")
        old.unlink()
        new.write_bytes(content)
        path = new.relative_to(self.root).as_posix()
        self.edit_inputs(lambda inputs: inputs[name].update(path=path), row)
        return new

    def edit_inputs(self, change: Callable[[dict], None], row: int = 0) -> None:
        """Change the inputs of a workload and give it, and its record, the UUID that follows from them."""
        uuid = self.rows(WORKLOADS)[row]["workload"]["uuid"]
        new: list[str] = []

        def rename(workload: dict) -> None:
            change(workload["inputs"])
            workload["uuid"] = workload_uuid(NAME, workload["inputs"])
            new.append(workload["uuid"])

        self.edit_workload(rename, row)
        self.edit_rows(
            CAPTURES, lambda rows: [item.update(workload=new[0]) for item in rows if item["workload"] == uuid]
        )
