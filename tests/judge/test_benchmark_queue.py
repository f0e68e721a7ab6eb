"""scripts/run_gpu_benchmarks.sh: one queue of definitions over several GPUs, here the host as two of them."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from helpers import judge_toy, toy


@pytest.fixture
def run(repository, tmp_path):
    root = judge_toy.judge_root(tmp_path, (24,))

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        settings = {
            "GPUS": "cpu cpu",
            "ROOT": str(root),
            "BENCHMARK_PYTHON": sys.executable,
            "LOCKS": str(tmp_path / "locks"),
            "BENCHMARK_FLAGS": "--validation-only",
        }
        script = repository / "scripts" / "run_gpu_benchmarks.sh"
        return subprocess.run(
            ["bash", script, tmp_path / "out", *arguments],
            capture_output=True,
            text=True,
            env=os.environ | settings | environment,
            timeout=120,
        )

    return call


def test_every_definition_is_judged_once_and_a_second_run_goes_on(run, tmp_path):
    first = run()
    assert first.returncode == 0, first.stderr
    (line,) = first.stdout.splitlines()
    assert line.startswith(f"cpu {toy.NAME}: exit code 0") and '"passed": 1' in line
    report = tmp_path / "out" / f"{toy.NAME}.jsonl"
    assert [json.loads(text)["status"] for text in report.read_text().splitlines()] == ["pass"]
    assert '"skipped": 1, "passed": 0' in run().stdout
    assert len(report.read_text().splitlines()) == 1


def test_what_could_not_be_judged_fails_the_run(run):
    done = run("no_such_definition", toy.NAME)
    assert done.returncode == 1
    assert "cpu no_such_definition: exit code 2" in done.stdout and f"cpu {toy.NAME}: exit code 0" in done.stdout


def test_without_a_gpu_nothing_starts(run, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sed", "tr", "dirname", "realpath", "mkdir"):
        (tools / name).symlink_to(shutil.which(name))
    done = run(GPUS="", PATH=str(tools))
    assert done.returncode == 1 and "expected a GPU; found none" in done.stderr
    assert not (tmp_path / "out").exists()
