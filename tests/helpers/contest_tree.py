"""A miniature copy of the contest's dataset in either of its layouts, and a dataset root that receives it."""

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

REPOSITORY = Path(__file__).resolve().parents[2]
DECODE, PREFILL = "gdn_decode_qk4_v8_d128_k_last", "gdn_prefill_qk4_v8_d128_k_last"
HEADS = {"q": (4, 128), "k": (4, 128), "v": (8, 128), "a": (8,), "b": (8,)}
# (definition, UUID, leading sizes of the token inputs, cumulative lengths, whether a state is given)
WORKLOADS = [
    (DECODE, "8add0000-0000-4000-8000-000000000001", (1, 1), None, True),
    (DECODE, "8add0000-0000-4000-8000-000000000002", (2, 1), None, False),
    (PREFILL, "95020000-0000-4000-8000-000000000003", (6,), (0, 6), False),
    (PREFILL, "95020000-0000-4000-8000-000000000004", (7,), (0, 3, 7), True),
]


def contest_root(path: Path) -> Path:
    """Write a dataset root with the two gated delta definitions and their tasks, without dev lists or workloads."""
    shutil.copytree(REPOSITORY / "definitions" / "gdn", path / "definitions" / "gdn")
    (path / "tasks").mkdir()
    for name in (DECODE, PREFILL):
        task = json.loads((REPOSITORY / "tasks" / f"{name}.json").read_text()) | {"dev": []}
        (path / "tasks" / f"{name}.json").write_text(json.dumps(task))
    return path


def wave(shape: tuple[int, ...], step: float) -> torch.Tensor:
    return torch.sin(torch.arange(math.prod(shape)) * step).reshape(shape)


def workload_tensors(lead: tuple[int, ...], bounds: tuple[int, ...] | None, state: bool) -> dict[str, torch.Tensor]:
    step = 0.1 + lead[0] / 100
    tensors = {
        name: (wave(lead + tail, step + position / 7) / 8).to(torch.bfloat16)
        for position, (name, tail) in enumerate(HEADS.items())
    }
    tensors |= {"A_log": wave((8,), 0.3), "dt_bias": wave((8,), 0.7)}
    sequences = lead[0] if bounds is None else len(bounds) - 1
    if state:
        tensors["state"] = wave((sequences, 8, 128, 128), 0.01)
    # A decode workload lists a cumulative length that its definition does not know.
    return tensors | {"cu_seqlens": torch.tensor(bounds or range(sequences + 1))}


def contest_tree(path: Path, layout: str, workloads: list[tuple] = WORKLOADS) -> Path:
    """Write the miniature; with layout `nested` each definition's tensor files have a folder of their own."""
    for name, uuid, lead, bounds, state in workloads:
        folder = "blob/workloads/gdn" + (f"/{name}" if layout == "nested" else "")
        text = f"./{folder}/{name}_{uuid}.safetensors"
        tensors = workload_tensors(lead, bounds, state)
        (path / folder).mkdir(parents=True, exist_ok=True)
        save_file(tensors, path / text)
        sequences = lead[0] if bounds is None else len(bounds) - 1
        axes = (
            {"batch_size": lead[0]}
            if bounds is None
            else {"total_seq_len": lead[0], "num_seqs": sequences, "len_cu_seqlens": len(bounds)}
        )
        inputs = {key: {"type": "safetensors", "path": text, "tensor_key": key} for key in tensors}
        inputs["scale"] = {"type": "scalar", "value": 0.08838834764831843}
        add_line(path, name, {"uuid": uuid, "axes": axes, "inputs": inputs})
    shutil.copytree(
        REPOSITORY / "definitions" / "gdn", path / "definitions" / "gdn", ignore=shutil.ignore_patterns("*.py")
    )
    return path


def add_line(path: Path, name: str, workload: dict) -> None:
    file = workload_file(path, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    line = {"definition": name, "solution": None, "workload": workload, "evaluation": None}
    file.write_text((file.read_text() if file.exists() else "") + json.dumps(line) + "\n")


def workload_file(path: Path, name: str) -> Path:
    return path / "workloads" / "gdn" / f"{name}.jsonl"


def edit_workload(path: Path, name: str, line: int, change) -> None:
    """Apply `change` to one workload object of the tree's JSONL."""
    rows = [json.loads(text) for text in workload_file(path, name).read_text().splitlines()]
    change(rows[line]["workload"])
    workload_file(path, name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def rewrite_tensor(path: Path, uuid: str, change) -> None:
    """Apply `change` to the tensors of one workload, as a dictionary, and store them again."""
    from safetensors.torch import load_file

    (file,) = (path / "blob").rglob(f"*_{uuid}.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
