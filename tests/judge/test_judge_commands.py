"""The three commands as users call them, their reports, and what they say to bad input. CPU only."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import judge_toy, toy
from helpers.judge_toy import judged
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.files import read_jsonl
from inference_kernels.core.native import native_data
from inference_kernels.judge.benchmark import benchmark
from inference_kernels.judge.judge import Judge, JudgeOptions

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SLOW = judge_toy.HONEST.replace("    rows = ids", "    time.sleep(0.004)\n    rows = ids").replace(
    "import torch\n", "import time\n\nimport torch\n", 1
)
# Misbehaves on one workload only.
GUILTY = judge_toy.HONEST.replace("    rows = ids", "    if len(ids) == 40:\n        {act}\n    rows = ids")
PREPARED = '''\
"""Boundary: gather, product and scale; the weight is widened once in prepare."""

import time

import torch


def run(x, weight, ids, scale):
    return prepare(x, weight, ids, scale)()


def prepare(x, weight, ids, scale):
    time.sleep(0.02)
    wide = weight.float()

    def launch():
        rows = ids.to(torch.int64)
        count = torch.bincount(rows, minlength=x.shape[0]).to(torch.int32)
        return ((x.float()[rows] @ wide) * scale).to(torch.bfloat16), count
    return launch
'''


@pytest.fixture(scope="module")
def finished_root(tmp_path_factory):
    return judge_toy.judge_root(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def root(finished_root, tmp_path):
    return Path(shutil.copytree(finished_root, tmp_path / "root"))


def command(root: Path, script: str, *arguments: object, gpu: str = "cpu") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script), "--root", str(root), "--gpu", gpu, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


# Isolation


@pytest.mark.parametrize(
    "act, status",
    [
        ("__import__('os')._exit(7)", "crashed"),
        ("raise ValueError('odd')", "runtime_error"),
        ("__import__('ctypes').string_at(0)", "crashed"),
        ("while True: pass", "timeout"),
    ],
)
def test_the_guilty_workload_is_named_and_the_other_one_still_passes(root, act, status):
    found = judged(root, GUILTY.format(act=act), build=6, call=6)
    records = {record["axes"]["N"]: record for record in found}
    assert records[40]["status"] == status and records[24]["status"] == "pass", records[24]["detail"]
    if "_exit" in act:
        assert "exit code 7" in records[40]["detail"]
    if "ValueError" in act:
        assert "odd at main.py" in records[40]["detail"]


def test_prepare_is_outside_the_launch_and_inside_the_call(root):
    record = judged(root, PREPARED)[0]
    assert record["status"] == "pass", record["detail"]
    assert record["timing"]["launch"]["median_us"] < 5_000 and record["timing"]["call"]["median_us"] > 20_000
    assert all(record["clocks"][when]["host_load"] >= 0 for when in ("before", "after"))


def test_a_reference_that_is_not_finite_is_nobodys_fault(root):
    path = root / "definitions" / judge_toy.OP_TYPE / f"{toy.NAME}.json"
    value = json.loads(path.read_text())
    value["reference"] = value["reference"].replace("* scale", "* scale / 0.0")
    path.write_text(json.dumps(value))
    assert {record["status"] for record in judged(root, judge_toy.HONEST)} == {"no_reference"}


def test_nothing_of_the_reference_is_in_the_workers_memory(root):
    """A worker that searches its memory for tensors of an output's form finds none before its first call."""
    source = judge_toy.HONEST.replace(
        "def run(",
        """
import gc


def found():
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
    return [item for item in tensors if item.dtype == torch.int32 and item.dim() == 1]


FIRST = found()


def run(""",
    ).replace("    rows = ids", "    assert FIRST == []\n    rows = ids")
    assert judged(root, source)[0]["status"] == "pass"


def test_a_judge_leaves_nothing_in_the_temporary_folder(root, tmp_path):
    candidate, temporary = tmp_path / "c.json", tmp_path / "tmp"
    candidate.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, SCRIPTS / "judge_solution.py", candidate, "--root", root, "--gpu", "cpu"],
        env=dict(os.environ, TMPDIR=str(temporary)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(temporary.iterdir()) == []


def test_a_killed_judge_leaves_no_process(root, tmp_path):
    """The fork server dies with the judge, and every worker with the fork server."""
    sleeping = "import time\n\ntime.sleep(60)\n" + judge_toy.HONEST
    judge_toy.add_solution(root, judge_toy.solution(sleeping, "sleeper"))
    script, report = SCRIPTS / "benchmark_solutions.py", tmp_path / "r.jsonl"
    judge = subprocess.Popen(
        [sys.executable, script, "--root", root, "--gpu", "cpu", "--solution", "sleeper", "--report", report],
        stderr=subprocess.DEVNULL,
    )
    try:
        workers = _until(lambda: [pid for server in _children(judge.pid) for pid in _children(server)])
        assert workers, "no worker came up"
        judge.send_signal(signal.SIGKILL)
        judge.wait()
        assert _until(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in workers)), "one survived"
    finally:
        judge.kill()
        judge.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _until(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


# benchmark_solutions.py


def test_benchmark_writes_resumes_and_exports(root, tmp_path):
    report, traces = tmp_path / "r.jsonl", root / "traces"
    done = command(root, "benchmark_solutions.py", "--report", report, "--traces", traces)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "never compare its figures with GPU ones" in done.stderr and "toy_torch" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "report": str(report),
        "skipped": 0,
        "passed": 2,
        "rejected": 0,
        "not_judged": 0,
    }
    native = native_data().TraceSet.from_path(str(root))
    assert [trace.evaluation.status.value for trace in native.traces[toy.NAME]] == ["PASSED", "PASSED"]
    again = command(root, "benchmark_solutions.py", "--report", report)
    assert again.returncode == 2 and "--resume" in again.stderr
    resumed = command(root, "benchmark_solutions.py", "--report", report, "--resume")
    assert resumed.returncode == 0 and json.loads(resumed.stdout.splitlines()[-1])["skipped"] == 2
    rows = [row for _, row in read_jsonl(report)]
    for row in rows:
        row["environment"]["host"] = "elsewhere"
    report.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = command(root, "benchmark_solutions.py", "--report", report, "--resume")
    assert refused.returncode == 2 and "this machine" in refused.stderr and refused.stderr.count("\n") == 2


def test_compare_to_capture_uses_the_saved_outputs(root, tmp_path):
    report = tmp_path / "r.jsonl"
    done = command(root, "benchmark_solutions.py", "--report", report, "--compare-to", "capture", "--validation-only")
    assert done.returncode == 0, done.stdout
    records = [record for _, record in read_jsonl(report)]
    assert {record["against"] for record in records} == {"capture"} and records[0]["timing"] == {}


def test_validation_alone_already_finds_memoised_results(root):
    memo = judge_toy.HONEST.replace("def run", "KNOWN = {}\n\n\ndef run").replace(
        "    return y.to(torch.bfloat16), count",
        "    y, count = KNOWN.setdefault(x.data_ptr(), (y.to(torch.bfloat16), count))\n"
        "    return y.clone(), count.clone()",
    )
    definition = load_definition(root, toy.NAME)
    with Judge(JudgeOptions(root, validation_only=True)) as judge:
        records = list(benchmark(judge, definition, judge_toy.solution(memo), (), set()))
    assert [record["status"] for record in records] == ["stale", "stale"]


def test_a_failing_solution_and_a_missing_tensor(root, tmp_path):
    wrong = judge_toy.HONEST.replace("* scale", "* scale * 1.1")
    judge_toy.add_solution(root, judge_toy.solution(wrong, "wrong"))
    done = command(
        root, "benchmark_solutions.py", "--report", tmp_path / "r.jsonl", "--solution", "wrong", "--validation-only"
    )
    assert done.returncode == 1 and "mismatch wrong" in done.stdout and "beyond the bound" in done.stdout
    shutil.rmtree(root / "blob" / "generated")
    done = command(
        root, "benchmark_solutions.py", "--report", tmp_path / "s.jsonl", "--solution", "toy_torch", "--validation-only"
    )
    assert done.returncode == 1 and "materialize_seeded.py" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["not_judged"] == 2


# judge_solution.py


def test_judge_accepts_and_reports_the_speedup(root, tmp_path):
    judge_toy.add_solution(root, judge_toy.solution(SLOW, "toy_torch"))
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "main.py").write_text(judge_toy.HONEST)
    done = command(root, "judge_solution.py", folder, "--task", toy.NAME)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["accepted"] and result["geometric_mean"] > 5 and set(result["groups"]) == {"N=24", "N=40"}


def test_several_duels_count_as_their_mean_and_end_with_a_rejection(root, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    done = command(root, "judge_solution.py", path, "--duels", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if " pass " in line]
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 4 and result["judged"] == 2
    assert f"single duels {min(result['duels']):.4g} to {max(result['duels']):.4g}" in done.stdout
    for uuid, value in result["speedups"].items():
        one, other = (float(row[3]) for row in rows if uuid.startswith(row[0]))
        assert value == pytest.approx((one * other) ** 0.5, rel=0.01)
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST.replace("* scale", ""), "c")))
    done = command(root, "judge_solution.py", path, "--duels", 3)
    assert done.returncode == 1 and len(json.loads(done.stdout.splitlines()[-1])["rejected"]) == 2
    done = command(root, "judge_solution.py", path, "--duels", 0)
    assert done.returncode == 2 and "from 1 to 1000" in done.stderr


def test_judge_rejects_and_says_why(root, tmp_path):
    for name, source, words in (
        ("wrong", judge_toy.HONEST.replace("* scale", ""), "mismatch"),
        ("broken", "import no_such_module\n" + judge_toy.HONEST, "no_such_module"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(judge_toy.solution(source, name)))
        done = command(root, "judge_solution.py", path)
        assert done.returncode == 1 and words in done.stdout and "rejected" in done.stdout, done.stderr


def test_validation_alone_needs_no_baseline(root, tmp_path):
    for path in (root / "solutions").rglob("*.json"):
        path.unlink()
    for name, source, code in (("right", judge_toy.HONEST, 0), ("wrong", judge_toy.HONEST.replace("* scale", ""), 1)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(judge_toy.solution(source, name)))
        done = command(root, "judge_solution.py", path, "--validation-only")
        assert done.returncode == code, done.stdout + done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["geometric_mean"] is None


def test_judge_cannot_judge(root, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    cases = [
        ((path, "--baseline", "nobody"), "cpu", "the baseline nobody"),
        ((path, "--dev"), "cpu", "a dev list"),
        ((tmp_path / "gone.json",), "cpu", "check the path"),
        ((path,), "GPU-123", "--lock-directory"),
    ]
    if shutil.which("nvidia-smi") is None:
        cases.append(((path, "--lock-directory", tmp_path), "GPU-123", "nvidia-smi"))
    for arguments, gpu, words in cases:
        done = command(root, "judge_solution.py", *arguments, gpu=gpu)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_failing_baseline_is_not_the_candidates_fault(root, tmp_path):
    judge_toy.add_solution(root, judge_toy.solution(judge_toy.HONEST.replace("* scale", ""), "toy_torch"))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    done = command(root, "judge_solution.py", path)
    assert done.returncode == 2 and "name another with --baseline" in done.stderr


# audit_solutions.py


def test_audit_compares_call_and_launch(root, tmp_path):
    judge_toy.add_solution(root, judge_toy.solution(PREPARED, "prepared"))
    report = tmp_path / "a.jsonl"
    done = command(root, "audit_solutions.py", "--report", report, "--solution", "prepared")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the weight is widened once in prepare" in done.stdout
    audit = next(read_jsonl(report))[1]["audit"]
    assert not audit["dps"]
    assert audit["has_prepare"] and audit["launch_equals_run"] and audit["inputs_unchanged"]


@pytest.mark.parametrize("script", ["benchmark_solutions.py", "audit_solutions.py", "judge_solution.py"])
def test_help_needs_no_package(script):
    code = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'pydantic'])); "
        "sys.argv = [sys.argv[1], '--help']; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPTS / script)],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ, PYTHONPATH=str(SCRIPTS)),
    )
    assert done.returncode == 0 and "--lock-directory" in done.stdout, done.stderr
