"""The toy dataset made judgeable.

Larger workloads, rearrangements, a baseline, and solutions from source text.
"""

import json
from pathlib import Path

from helpers import toy
from inference_kernels.core.definitions import load_definition
from inference_kernels.judge.bench import Limits
from inference_kernels.judge.benchmark import benchmark
from inference_kernels.judge.judge import Judge, JudgeOptions

OP_TYPE = "gdn"
MOVES = [
    {"name": "sources", "axes": "x.0 count.0", "relabel": "ids", "after_prepare": True},
    {"name": "rows", "axes": "ids.0 y.0", "after_prepare": True},
    {"name": "columns", "axes": "weight.1 y.1"},
    {"name": "elements of the rows alone", "axes": "x.1", "after_prepare": True, "recompute": True},
]
# Content of every timed call: rows are new, ids and scale stay, the weight is new where nothing was prepared from it.
FRESH = [
    {"tensor": "x", "how": "mix", "axis": 0, "after_prepare": True, "reason": "as many rows, chosen by the same ids"},
    {"tensor": "weight", "how": "mix", "axis": 0, "reason": "the same product"},
]
# Honest and complete; can be captured in a CUDA graph (bincount cannot).
HONEST = """\
import torch


def run(x, weight, ids, scale):
    rows = ids.to(torch.int64)
    y = (x.float()[rows] @ weight.float()) * scale
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    count.scatter_add_(0, rows, torch.ones_like(count))
    return y.to(torch.bfloat16), count
"""


def solution(source: str, name: str = "toy_candidate", dps: bool = False, **spec) -> dict:
    """A native Solution of the toy definition with one source file."""
    fields = {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "dependencies": [],
        "destination_passing_style": dps,
    } | spec
    return {
        "name": name,
        "definition": toy.NAME,
        "author": "tests",
        "spec": fields,
        "sources": [{"path": "main.py", "content": source}],
    }


def judge_root(
    path: Path,
    rows: tuple[int, ...] = (24, 40),
    iterations: int = 6,
    trials: int = 1,
    timed: str = "call",
    moves=MOVES,
    fresh=FRESH,
) -> Path:
    """A dataset root with workloads, moves, rules of fresh content and the baseline `toy_torch`."""
    root = toy.toy_root(path / "dataset")
    toy.captured_run(path / "run", root, rows)
    toy.import_run(path / "run", root)
    give_floor(root)
    task_file = root / "tasks" / f"{toy.NAME}.json"
    task = json.loads(task_file.read_text()) | {"rearrangements": moves, "fresh": fresh}
    task["timing"] |= {"warmup": 1, "iters": iterations, "trials": trials, "timed": timed}
    task_file.write_text(json.dumps(task))
    add_solution(root, solution(HONEST, "toy_torch"))
    return root


def give_floor(root: Path) -> None:
    """Move the toy to an op_type whose floor is the bytes of all tensors; the judge knows none of `toy`."""
    for folder in ("definitions", "workloads"):
        (root / folder / "toy").rename(root / folder / OP_TYPE)
    for path in (root / "definitions" / OP_TYPE / f"{toy.NAME}.json", root / "tasks" / f"{toy.NAME}.json"):
        text = path.read_text().replace('"op_type": "toy"', f'"op_type": "{OP_TYPE}"')
        path.write_text(text.replace("workloads/toy/", f"workloads/{OP_TYPE}/"))


def add_solution(root: Path, value: dict) -> Path:
    path = root / "solutions" / OP_TYPE / f"{value['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def judged(root: Path, source: str, **limits: float) -> list[dict]:
    """Records of one solution on every workload, on the CPU."""
    definition = load_definition(root, toy.NAME)
    with Judge(JudgeOptions(root, limits=Limits(**limits))) as judge:
        return list(benchmark(judge, definition, solution(source), (), set()))
