"""nvidia-smi lists a GPU, but this Python's torch cannot use it: one line and exit code 2, never a verdict."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import judge_toy

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
UUID = "GPU-1a2b3c4d-0000-0000-0000-000000000000"
STAND_IN = f"""#!/bin/sh
case "$*" in
  -L) echo "GPU 0: NVIDIA H200 (UUID: {UUID})";;
  *driver*) echo 550.1;;
  *) echo "P0, 1, 1, 1, 1, 1, 0";;
esac
"""
# A torch with CUDA whose driver is too old, or whose card is gone, answers so.
NO_DEVICE = "import torch; torch.version.cuda = '12.9'; torch.cuda.is_available = lambda: False"


@pytest.fixture
def stand_in(tmp_path):
    """The environment in which nvidia-smi is a script that lists one H200."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(STAND_IN)
    (tools / "nvidia-smi").chmod(0o755)
    return os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}


def judge(stand_in, tmp_path, script, *arguments, before="import torch; torch.version.cuda = None"):
    root = judge_toy.judge_root(tmp_path, (24,))
    code = f"import runpy, sys; {before}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    flags = ["--root", root, "--gpu", "GPU-1a2", "--lock-directory", tmp_path / "locks"]
    return subprocess.run(
        [sys.executable, "-c", code, str(SCRIPTS / script), *map(str, (*arguments, *flags))],
        capture_output=True,
        text=True,
        timeout=120,
        env=stand_in | {"PYTHONPATH": str(SCRIPTS)},
    )


@pytest.mark.parametrize("script", ["judge_solution.py", "benchmark_solutions.py", "audit_solutions.py"])
def test_a_build_of_torch_without_cuda_is_one_line(stand_in, tmp_path, script):
    candidate = tmp_path / "c.json"
    candidate.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    arguments = (candidate,) if script == "judge_solution.py" else ("--report", tmp_path / "r.jsonl")
    done = judge(stand_in, tmp_path, script, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "a build without CUDA" in line and "--gpu cpu" in line
    assert done.stdout == ""


def test_a_torch_that_sees_no_gpu_is_one_line(stand_in, tmp_path):
    done = judge(stand_in, tmp_path, "audit_solutions.py", "--report", tmp_path / "r.jsonl", before=NO_DEVICE)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and "CUDA 12.9) sees no usable GPU" in line
