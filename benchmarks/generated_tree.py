"""Generate a dataset tree or a capture run of a given size for benchmarks: real layout, meaningless bytes.

The bytes depend on a counter, so every file is different; nothing here is captured data or published.
"""

import hashlib
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))

from inference_kernels.capture.run import FORMAT, MANIFEST, VERSION
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.files import write_json
from inference_kernels.core.records import tensor_reference, workload_uuid, write_captures, write_workloads
from inference_kernels.core.tasks import write_dev
from inference_kernels.core.tensors import tensor_file_header

NAME = "dense_gemm_bf16_nt_n4096_k4096"
ROWS = 4096
FORM = (ROWS, 4096)
FILE_BYTES = ROWS * 4096 * 2
MODEL = {"id": "benchmark", "revision": "none", "config_sha256": "0" * 64, "seed": 0, "recipe": "counter bytes"}
ENGINE = {"name": "none", "version": "0", "flags": {}, "environment": {}, "substitutions": []}


def write_counter_tensor(folder: Path, number: int) -> str:
    """Write a BF16 tensor file of FILE_BYTES whose content depends on `number`; return its SHA-256."""
    block = hashlib.sha256(str(number).encode()).digest() * 32768
    content = tensor_file_header("bfloat16", FORM) + block * (FILE_BYTES // len(block))
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"{digest}.safetensors").write_bytes(content)
    return digest


def calls(folder: Path, prefix: str, count: int) -> list[tuple[dict, dict]]:
    """Generate (workload, record) pairs with two files per call and one weight shared by all."""
    folder.mkdir(parents=True)

    def item(number: int) -> dict:
        return tensor_reference(f"{prefix}/{write_counter_tensor(folder, number)}.safetensors")

    weight, pairs = item(0), []
    for call in range(count):
        inputs = {"A": {"type": "safetensors"} | item(2 * call + 1), "B": {"type": "safetensors"} | weight}
        uuid = workload_uuid(NAME, inputs)
        record = {
            "workload": uuid,
            "definition": NAME,
            "class": "seeded",
            "model": MODEL,
            "engine": ENGINE,
            "hardware": {"device": "none"},
            "request": {"case": "benchmark"},
            "operation": {"call_path": "none", "layer": None, "step": None, "phase": "none", "ranks_gathered": 1},
            "adaptations": [],
            "outputs": {"C": item(2 * call + 2)},
            "auxiliary": {},
            "statistics": {},
        }
        pairs.append(({"axes": {"M": ROWS}, "inputs": inputs, "uuid": uuid}, record))
    return pairs


def copy_contracts(root: Path) -> None:
    """Copy definitions and tasks, but not the dev subsets, whose workloads the tree lacks."""
    for name in ("definitions", "tasks"):
        shutil.copytree(REPOSITORY / name, root / name)
    for path in (root / "tasks").glob("*.json"):
        write_dev(root, path.stem, [])


REPLAY = {"criterion": {}, "device": "none", "errors": {}, "passed": True}


def dataset_tree(root: Path, size: int) -> int:
    """Write a dataset of about `size` bytes at `root`; return the number of tensor files."""
    copy_contracts(root)
    folder = root / "blob" / "workloads" / NAME
    pairs = calls(folder, f"blob/workloads/{NAME}", size // (2 * FILE_BYTES))
    write_captures(root, [record | {"replay": REPLAY} for _, record in pairs])
    write_workloads(root, load_definition(root, NAME), [workload for workload, _ in pairs])
    return len(list(folder.iterdir()))


def capture_run(run: Path, size: int) -> int:
    """Write a complete run folder of about `size` bytes; return the number of tensor files."""
    folder = run / "blob" / NAME
    for workload, record in calls(folder, f"blob/{NAME}", size // (2 * FILE_BYTES)):
        write_json(run / "calls" / f"{workload['uuid']}.json", {"workload": workload, "record": record})
        write_json(run / "validation" / f"{workload['uuid']}.json", REPLAY)
    files = {
        path.relative_to(run).as_posix(): {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }
    write_json(
        run / MANIFEST,
        {"format": FORMAT, "version": VERSION, "complete": True, "settings": {}, "cases": {}, "files": files},
    )
    return len(list(folder.iterdir()))


def _digest(path: Path) -> str:
    return path.stem if path.suffix == ".safetensors" else hashlib.sha256(path.read_bytes()).hexdigest()
