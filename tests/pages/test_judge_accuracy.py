"""docs/judge.md and the command behind it: how duels are summed up, what the page shows, what a host without GPU gets.

All figures here are made up.
"""

import importlib.util
import math
import os
import subprocess
import sys

import pytest

from helpers import judge_toy
from inference_kernels.core.files import write_json
from inference_kernels.core.solutions import find_solutions
from inference_kernels.core.tasks import read_task
from inference_kernels.judge.judge import Judge, JudgeOptions
from inference_kernels.judge.verdicts import CannotJudge
from inference_kernels.pages.judge import SUMMARY, judge_page

SECONDS = {"start": 0.5, "first_calls": 1.0, "kernels": 0.25, "overhead": 0.75, "total": 2.5}


@pytest.fixture(scope="module")
def script(repository):
    """The command as a module."""
    sys.path.insert(0, str(repository / "benchmarks"))
    spec = importlib.util.spec_from_file_location("judge_accuracy", repository / "benchmarks" / "judge_accuracy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(repository / "benchmarks"))


def record(microseconds: float, workload: str = "w0", **changes) -> dict:
    return {
        "definition": "gemm",
        "workload": workload,
        "status": "pass",
        "detail": "",
        "axes": {"M": 1},
        "group_axis": "M",
        "timed": "launch",
        "timing": {"launch": {"median_us": microseconds}},
        "seconds": dict(SECONDS),
    } | changes


def made_up(script) -> dict:
    """A summary of two kernels and two solutions."""
    duels = [[(record(10.0), record(11.0))], [(record(11.0), record(10.0))]]
    launch = script.summed_up("toy_launch", duels, [4.0, 6.0])
    return {
        "command": "python benchmarks/judge_accuracy.py --duels 2",
        "date": "2001-02-03",
        "seconds": 12,
        "device": "Toy GPU",
        "driver": "1",
        "cuda": "2",
        "torch": "3",
        "triton": "4",
        "launch_overhead_us": 1.25,
        "kernels": [script.kernel_row("tiny", 2.5, 2.0), script.kernel_row("huge", 98.0, 100.0)],
        "self_duels": [launch, launch | {"solution": "toy_call", "timed": "call", "worst_duel": 0.75}],
    }


def test_duels_are_summed_up(script):
    found = script.summed_up("s", [[(record(10.0), record(11.0))], [(record(10.0), record(10.0))]], [3.0, 5.0])
    assert found["ratios"] == [1.1, 1.0] and found["worst_duel"] == 1.1
    assert found["geometric_mean"] == round(math.sqrt(1.1), 4)
    assert found["workloads"] == [{"workload": "w0", "axes": {"M": 1}, "median_us": 10.0, "worst_ratio": 1.1}]
    assert found["seconds"] == SECONDS | {"largest": 2.5, "duel": 4.0}
    assert found["one_duel_resolves_percent"] == round(100 * (1.1 ** math.sqrt(2) - 1), 2)
    assert found["ten_duels_resolve_percent"] == round(100 * (1.1 ** math.sqrt(0.2) - 1), 2)


def test_a_workload_far_from_one_shows_although_the_duel_averages_it_out(script):
    pairs = [(record(10.0), record(8.0)), (record(8.0, "w1"), record(10.0, "w1"))]
    found = script.summed_up("s", [pairs], [1.0])
    assert found["ratios"] == [1.0] and [row["worst_ratio"] for row in found["workloads"]] == [0.8, 1.25]


def test_a_failing_side_fails_the_command(script):
    failed = record(10.0, status="mismatch", detail="no")
    with pytest.raises(CannotJudge, match="s, workload w0: expected a solution that passes; found mismatch: no"):
        script.summed_up("s", [[(record(10.0), failed)]], [1.0])


def test_records_of_a_real_duel_are_summed_up(script, tmp_path):
    root = judge_toy.judge_root(tmp_path, (24,), iterations=3, timed="launch")
    with Judge(JudgeOptions(root, memory_gib=1)) as judge:
        found = script.self_duels(judge, "toy_torch", 1)
    seconds = found["seconds"]
    assert len(found["ratios"]) == 1 and found["timed"] == "launch" and seconds["largest"] <= 2 * seconds["duel"]
    assert all(seconds[part] > 0 for part in SECONDS)
    assert sum(seconds[part] for part in SECONDS if part != "total") == pytest.approx(seconds["total"], abs=0.005)


def test_figures_of_the_page(script, tmp_path):
    write_json(tmp_path / SUMMARY, made_up(script))
    page = judge_page(tmp_path)
    for text in (
        "on 2001-02-03 in 12 s: Toy GPU, driver 1, torch 3, Triton 4, CUDA 2.",
        "(1.25 us here)",
        "They agree within 0.50 us below 20 us and within 2.0 % from 20 us.",
        "| tiny | 2.50 | 2.00 | 0.50 | 25.00 |",
        "| huge | 98.00 | 100.00 | -2.00 | -2.00 |",
        "Launches differ from themselves by up to 10.0% in a single duel and by up to 0.0% in the mean",
        "Eager calls differ from themselves by up to 25.0%",
        "| `toy_launch` | launch | 10.5 | 1.0000 | 1.1000 | 1.1000 | 21.0 | 6.2 |",
        "| `toy_launch` | 1 | 0.50 | 1.00 | 0.25 | 0.75 | 2.50 | 2.50 | 5.00 |",
        "(8 records)",
        "The judge adds\n0.75 s; the slowest record took 2.5 s.",
    ):
        assert text in page, text
    assert page.count("python benchmarks/judge_accuracy.py --duels 2") == 1


def test_the_command_is_recorded_without_paths(script):
    parse = script.parser().parse_args
    assert script.command_line(parse(["--output", "/somewhere"])) == "python benchmarks/judge_accuracy.py"
    options = parse(["--duels", "3", "--solution", "a", "--solution", "b"])
    assert script.command_line(options).endswith("judge_accuracy.py --duels 3 --solution a --solution b")


def test_default_solutions_are_committed_and_have_dev_workloads(script, repository):
    for name in script.SOLUTIONS:
        solution = find_solutions(repository, name, None)[0]
        assert read_task(repository, solution["definition"]).dev


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(repository, tmp_path):
    done = subprocess.run(
        [sys.executable, repository / "benchmarks" / "judge_accuracy.py", "--output", tmp_path / "out.json"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 2 and done.stdout == "" and not list(tmp_path.iterdir())
    assert done.stderr == "error: judge_accuracy.py: expected a CUDA device; found none; run it on a GPU host\n"
