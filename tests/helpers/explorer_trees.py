"""Dataset trees for the explorer, of this repository's contracts and records; they have no tensor files."""

import hashlib
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

from inference_kernels.core.files import read_jsonl, write_json, write_jsonl
from inference_kernels.core.records import NAMESPACE, read_captures, write_captures, write_workloads

NAME, OP_TYPE = "sparse_mla_prefill_bf16_h64_d512_s128", "sparse_mla"
# Would run if any part became markup or code.
ATTACK = "<img src=x onerror=\"window.attacked='image'\"></script><script>window.attacked='script'</script>'\"`${1}"


def small_tree(repository: Path, root: Path) -> Path:
    """Build a tree of one definition with its task and workloads."""
    for path in (f"definitions/{OP_TYPE}/{NAME}.json", f"tasks/{NAME}.json", f"workloads/{OP_TYPE}/{NAME}.jsonl"):
        (root / path).parent.mkdir(parents=True)
        shutil.copyfile(repository / path, root / path)
    write_captures(root, [record for record in read_captures(repository) if record["definition"] == NAME])
    return root


def edit(path: Path, **fields: Any) -> None:
    """Replace fields of a JSON object."""
    write_json(path, json.loads(path.read_text()) | fields)


def hostile_tree(repository: Path, root: Path) -> Path:
    """Build the small tree with ATTACK wherever the schemas allow a text, and a figure with a script in it."""
    small_tree(repository, root)
    code = "def run(q, kv, indices, topk_length, attn_sink, sm_scale):\n    return q\n"
    reference = f'"""{ATTACK}"""\n\n\n{code}'
    edit(
        root / f"definitions/{OP_TYPE}/{NAME}.json",
        description=ATTACK,
        tags=[f"model:{ATTACK}", ATTACK],
        reference=reference,
        constraints=[ATTACK],
    )
    edit(root / f"tasks/{NAME}.json", baseline=ATTACK)
    records = read_captures(root)
    for record in records:
        for group in ("model", "engine", "hardware", "request", "operation"):
            record[group] |= {
                key: ATTACK for key, value in record[group].items() if isinstance(value, str) and key != "config_sha256"
            }
            record[group][ATTACK] = {ATTACK: ATTACK}
        record["engine"]["flags"] = {"__proto__": {"polluted": ATTACK}, "constructor": ATTACK}
        record["engine"]["substitutions"] = record["adaptations"] = [ATTACK]
        record["statistics"][ATTACK] = record["statistics"]["q"]
        record["replay"]["errors"][ATTACK] = {"status": ATTACK}
    write_captures(root, records)
    write_json(root / "solutions" / OP_TYPE / "hostile.json", solution(ATTACK, content=reference))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" onload="top.attacked=1"><title>{NAME}</title>'
        "<script>top.attacked='figure'</script></svg>"
    )
    for place in ("errors.svg", f"shapes/{NAME}.svg"):
        (root / "docs/figures" / place).parent.mkdir(parents=True, exist_ok=True)
        (root / "docs/figures" / place).write_text(svg)
    return root


def solution(name: str, content: str = "def run():\n    return 1\n", targets: tuple[str, ...] = ("cuda",)) -> dict:
    spec = {
        "language": "python",
        "target_hardware": list(targets),
        "entry_point": "main.py::run",
        "dependencies": [],
        "destination_passing_style": False,
    }
    return {
        "name": name,
        "definition": NAME,
        "author": name,
        "description": name,
        "spec": spec,
        "sources": [{"path": "main.py", "content": content}],
    }


def large_tree(repository: Path, root: Path, count: int) -> Path:
    """Build a tree of `count` workloads: the repository's own repeatedly, each time with other tensors."""
    for folder in ("definitions", "tasks", "solutions", "docs/figures"):
        shutil.copytree(repository / folder, root / folder)
    originals = read_captures(repository)
    files = sorted((repository / "workloads").glob("*/*.jsonl"))
    lines = [row for path in files for _, row in read_jsonl(path)]
    calls = {row["workload"]["uuid"]: row["workload"] for row in lines}
    records, workloads = [], {}
    for number in range(count):
        record = originals[number % len(originals)]
        name = str(uuid.uuid5(NAMESPACE, f"{record['workload']} {number}"))
        group = workloads.setdefault(record["definition"], [])
        group.append(_renamed(calls[record["workload"]], number) | {"uuid": name})
        records.append(_renamed(record, number) | {"workload": name})
    write_captures(root, records)
    for path in sorted((root / "definitions").glob("*/*.json")):
        write_workloads(root, json.loads(path.read_text()), workloads.get(path.stem, []))
    return root


def _renamed(value: Any, number: int) -> Any:
    """Replace the hash in every blob path of `value` by another one."""
    if isinstance(value, dict):
        return {key: _renamed(item, number) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("blob/"):
        folder, digest = value.removesuffix(".safetensors").rsplit("/", 1)
        return f"{folder}/{hashlib.sha256(f'{digest} {number}'.encode()).hexdigest()}.safetensors"
    return value


def write_results(root: Path, *rows: dict) -> Path:
    path = root / "results" / "summaries" / "h200_baselines.jsonl"
    write_jsonl(path, list(rows))
    return path


def result(**fields: Any) -> dict:
    return {
        "definition": NAME,
        "solution": "fast",
        "data": "starter",
        "class": ["seeded"],
        "device": "gpu",
        "peaks": {},
        "packages": {"torch": "2.0"},
        "timed": "launch",
        "passed": 3,
        "workloads": 3,
        "statuses": {"pass": 3},
        "geomean_us": 12.5,
        "floor_ratio": 1.9,
        "speed_vs_sglang": None,
        "worst_error": 0.0039,
        "unsteady": 0,
        "cases": [],
    } | fields
