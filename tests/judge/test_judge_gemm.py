"""The judge on a published definition.

A plain torch GEMM in true N and K, from captured-style files, on the host.
"""

import json
import shutil

import pytest

from helpers.reference_checks import normal
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.records import tensor_reference, workload_uuid, write_workloads
from inference_kernels.core.tensors import save_tensor
from inference_kernels.judge.benchmark import benchmark
from inference_kernels.judge.judge import Judge, JudgeOptions

NAME = "dense_gemm_bf16_nt_n4096_k4096"
PLAIN = "def run(A, B):\n    return A @ B.T\n"
# Right on the captured rows, but B is trusted to be the first one that was seen.
FIRST_WEIGHT = "SEEN = []\n\n\ndef run(A, B):\n    SEEN.append(B.clone())\n    return A @ SEEN[0].T\n"


@pytest.fixture(scope="module")
def root(repository, tmp_path_factory):
    root = tmp_path_factory.mktemp("gemm")
    for folder in ("definitions/gemm", "tasks"):
        shutil.copytree(repository / folder, root / folder)
    inputs = {}
    for name, tensor in (("A", normal(8, 4096, seed=1)), ("B", normal(4096, 4096, seed=2))):
        digest, _ = save_tensor(root / "blob" / "workloads" / NAME, tensor)
        path = f"blob/workloads/{NAME}/{digest}.safetensors"
        inputs[name] = {"type": "safetensors"} | tensor_reference(path)
    workload = {"uuid": workload_uuid(NAME, inputs), "axes": {"M": 8}, "inputs": inputs}
    write_workloads(root, load_definition(root, NAME), [workload])
    task = root / "tasks" / f"{NAME}.json"
    value = json.loads(task.read_text())
    task.write_text(json.dumps(value | {"timing": value["timing"] | {"warmup": 1, "iters": 2, "trials": 1}}))
    return root


@pytest.fixture(scope="module")
def judge(root):
    with Judge(JudgeOptions(root)) as judge:
        yield judge


def judged(judge, root, source: str) -> dict:
    spec = {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "dependencies": [],
        "destination_passing_style": False,
    }
    solution = {
        "name": "gemm",
        "definition": NAME,
        "author": "tests",
        "spec": spec,
        "sources": [{"path": "main.py", "content": source}],
    }
    return next(benchmark(judge, load_definition(root, NAME), solution, (), set()))


def test_a_gemm_is_judged_in_true_dimensions(judge, root):
    record = judged(judge, root, PLAIN)
    assert record["status"] == "pass", record["detail"]
    assert record["notes"] == [] and record["floor"]["operations"] == 2 * 8 * 4096**2
    assert set(record["timing"]) == {"launch", "call"}


def test_a_weight_kept_from_the_first_call_is_found(judge, root):
    record = judged(judge, root, FIRST_WEIGHT)
    assert record["status"] == "mismatch", record["detail"]
