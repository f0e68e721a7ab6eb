"""A part is not the whole: what is left out of a judgement is named, and never accepted. CPU only."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import judge_toy, toy

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


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


@pytest.mark.parametrize("flags", [(), ("--validation-only",), ("--duels", 2)])
def test_a_part_of_the_workloads_is_no_acceptance(root, tmp_path, flags):
    """One of two workloads behind an LFS pointer, then gone; what is there passes."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    workloads = root / "workloads" / judge_toy.OP_TYPE / f"{toy.NAME}.jsonl"
    left = json.loads(workloads.read_text().splitlines()[0])["workload"]
    blob = root / left["inputs"]["x"]["path"]
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{blob.stem}\nsize {blob.stat().st_size}\n"
    for act, command_that_helps in ((lambda: blob.write_text(pointer), "git lfs pull"), (blob.unlink, "git checkout")):
        act()
        done = command(root, "judge_solution.py", path, *flags)
        assert done.returncode == 2, done.stdout + done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert not result["accepted"] and not result["complete"] and not result["rejected"]
        assert (result["judged"], result["not_judged"]) == (1, 1)
        assert result["left_out"][0]["workload"] == left["uuid"] and "accepted," not in done.stdout
        (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
        assert f"1 of 2 not judged: {left['uuid']}" in error and command_that_helps in error
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST.replace("* scale", ""), "c")))
    assert command(root, "judge_solution.py", path, *flags).returncode == 1


def test_a_dev_list_with_an_absent_workload_is_not_judged_in_part(root, tmp_path):
    path, task = tmp_path / "c.json", root / "tasks" / f"{toy.NAME}.json"
    path.write_text(json.dumps(judge_toy.solution(judge_toy.HONEST, "c")))
    workloads = root / "workloads" / judge_toy.OP_TYPE / f"{toy.NAME}.jsonl"
    uuids = [json.loads(line)["workload"]["uuid"] for line in workloads.read_text().splitlines()]
    task.write_text(json.dumps(json.loads(task.read_text()) | {"dev": uuids}))
    workloads.write_text(workloads.read_text().splitlines()[1] + "\n")
    for script, arguments in (
        ("judge_solution.py", (path, "--validation-only")),
        ("benchmark_solutions.py", ("--report", tmp_path / "r.jsonl", "--validation-only")),
    ):
        done = command(root, script, "--dev", *arguments)
        assert done.returncode == 2 and uuids[0] in done.stderr and "1 of 2 not in the dataset" in done.stderr
    workloads.write_text("")
    done = command(root, "judge_solution.py", path, "--validation-only")
    assert done.returncode == 2 and "no workload" in done.stderr
