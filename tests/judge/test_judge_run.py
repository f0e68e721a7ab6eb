"""What a judged workload costs, how often it is looked at, and who goes first. CPU only."""

import os
import subprocess
import sys

import pytest
import torch

from helpers import judge_toy, toy
from helpers.judge_toy import judged
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.tensors import load_tensor
from inference_kernels.judge import bench as judge_run
from inference_kernels.judge import case, timing, window
from inference_kernels.judge import duel as judge_duel
from inference_kernels.judge.duel import duel
from inference_kernels.judge.judge import Judge, JudgeOptions
from inference_kernels.judge.verdicts import CannotJudge, Rejected
from inference_kernels.judge.window import window_fulls

FAULTS = """
import ctypes, resource
from inference_kernels.judge.worker.device import HostDevice
HostDevice()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


def once():
    blocks = [library.malloc(ctypes.c_size_t(2**20)) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, 2**20)
    for block in blocks:
        library.free(block)


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


for _ in range(5):
    once()
before = faults()
for _ in range(20):
    once()
print(faults() - before)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return judge_toy.judge_root(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize(
    "line, status",
    [
        ("count.fill_(-1)", "mismatch"),
        ("count[-1] = -1", "mismatch"),
        ("y = (y.to(torch.bfloat16).view(torch.int16) | -1).view(torch.bfloat16)", "non_finite"),
        ("y = torch.empty_like(y, dtype=torch.bfloat16)", "unwritten"),
    ],
)
def test_a_written_value_that_equals_the_poison_is_not_called_unwritten(root, line, status):
    records = judged(root, judge_toy.HONEST.replace("    return", f"    {line}\n    return"))
    assert {record["status"] for record in records} == {status}, records[0]["detail"]


def test_the_harness_is_not_blamed_for_a_slow_first_call(root):
    slow = judge_toy.HONEST.replace("def run(", "import time\nSEEN = []\n\n\ndef run(").replace(
        "    rows = ids", "    if not SEEN:\n        SEEN.append(time.sleep(1))\n    rows = ids"
    )
    records = judged(root, slow)
    first, later = (record["seconds"] for record in records)
    assert first["first_calls"] >= 1 > later["first_calls"] and first["start"] > later["start"]
    for record in records:
        seconds = dict(record["seconds"])
        own = sum(seconds[name] for name in ("start", "first_calls", "kernels", "overhead"))
        assert record["status"] == "pass" and own == pytest.approx(seconds["total"], abs=0.01)
        assert 0 < seconds["load"] < seconds["overhead"]


@pytest.mark.parametrize("seconds,looks", [(60.0, 16), (1e-9, 1)])
def test_a_trial_looks_as_often_as_there_is_time_for_the_reference(tmp_path, monkeypatch, seconds, looks):
    root = judge_toy.judge_root(tmp_path, (24,), iterations=20, moves=judge_toy.MOVES[-1:])
    monkeypatch.setattr(timing, "RECHECK_SECONDS", seconds)
    record = judged(root, judge_toy.HONEST)[0]
    assert record["status"] == "pass", record["detail"]
    assert record["checked_calls"] == {"call": 9 + looks, "launch": 4 + looks}


def test_a_bank_is_read_once_for_workloads_that_share_it(root, monkeypatch):
    read = []
    monkeypatch.setattr(case, "load_tensor", lambda path, device: read.append(path) or load_tensor(path, device))
    monkeypatch.setattr(case, "TOUCH_LIMIT", 0)
    banks = case.LargeTensors()
    first, second = sorted((root / "blob").rglob("*.safetensors"))[:2]
    for paths in ((first, second), (first,), (first,), (second,)):
        for path in paths:
            assert torch.equal(banks.load(path, "cpu"), load_tensor(path))
        banks.keep_latest()
    assert read == [first, second, second]


def test_orders_too_large_for_the_window_are_named(root, monkeypatch):
    monkeypatch.setattr(
        judge_run, "window_fulls", lambda sizes: [[piece] for full in window_fulls(sizes) for piece in full]
    )
    with pytest.raises(CannotJudge, match="enlarge WINDOW_BYTES"):
        judged(root, judge_toy.HONEST)


@pytest.mark.parametrize("body, status", [("", "pass"), ("    ids[-1] = 0\n", "input_modified")])
def test_tensors_cross_in_halves_of_the_window(root, monkeypatch, body, status):
    longest = []

    def many(sizes):
        with monkeypatch.context() as smaller:
            if sizes and isinstance(next(iter(sizes)), str):  # tensors, not orders
                smaller.setattr(window, "WINDOW_BYTES", 1024)
            fulls = list(window_fulls(sizes))
        longest.append(len(fulls))
        return fulls

    monkeypatch.setattr(judge_run, "window_fulls", many)
    source = judge_toy.HONEST.replace("    rows = ids", body + "    rows = ids")
    assert {record["status"] for record in judged(root, source)} == {status}
    assert max(longest) > 2


@pytest.mark.parametrize("first", [0, 1], ids=["candidate first", "baseline first"])
def test_either_may_go_first_and_only_its_own_failure_counts(root, first):
    definition = load_definition(root, toy.NAME)
    sound, broken = (
        judge_toy.solution(judge_toy.HONEST, "sound"),
        judge_toy.solution("import nothing_of_the_kind\n\n" + judge_toy.HONEST, "broken"),
    )
    with Judge(JudgeOptions(root, validation_only=True)) as judge:
        only = (judge.workloads(definition, ())[0].uuid,)
        ((one, other),) = duel(judge, definition, sound, sound, only, first)
        assert (one["went_first"], other["went_first"]) == (first == 0, first == 1)
        assert one["status"] == other["status"] == "pass" and one["seconds"]["start"] > 0
        assert one["seconds"]["overhead"] < one["seconds"]["total"] - one["seconds"]["start"]
        ((one, other),) = duel(judge, definition, broken, sound, only, first)
        assert (one["status"], other["status"]) == ("build_error", "not_reached")
        with pytest.raises(CannotJudge, match="nothing_of_the_kind"):
            list(duel(judge, definition, sound, broken, only, first))


def test_a_baseline_that_fails_beside_a_candidate_that_went_first_goes_first_itself(root, monkeypatch):
    """As where the candidate takes all memory: its own failure, not the baseline's."""
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    run_stage, sides = judge_duel._run_stage, []

    def no_room_for_the_second(stage, side, *others):
        if stage[0] == "validate":
            sides.append(side)
            if len(sides) % 2 == 0:
                raise judge_duel._SideFailed(side, Rejected("out_of_memory", "no room"))
        run_stage(stage, side, *others)

    monkeypatch.setattr(judge_duel, "_run_stage", no_room_for_the_second)
    with Judge(JudgeOptions(root, validation_only=True)) as judge:
        only = (judge.workloads(definition, ())[0].uuid,)
        ((one, other),) = duel(judge, definition, sound, sound, only, first=0)
    assert sides == [0, 1, 1, 0] and (one["status"], other["status"]) == ("out_of_memory", "pass")


@pytest.mark.parametrize("first", [0, 1])
def test_all_that_is_timed_is_the_same_for_both_sides_when_they_change_places(tmp_path, first, monkeypatch):
    root = judge_toy.judge_root(tmp_path, trials=3)
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    run_stage, seen = judge_duel._run_stage, []

    def noted(stage, side, *others):
        seen.append((stage[0], side))
        run_stage(stage, side, *others)

    monkeypatch.setattr(judge_duel, "_run_stage", noted)
    with Judge(JudgeOptions(root)) as judge:
        list(duel(judge, definition, sound, sound, (judge.workloads(definition, ())[0].uuid,), first))
    assert {what for what, _ in seen} == {"start", "validate", "prepare", "timed", "keep_to", "summarise", "finish"}
    places = {what: [side for name, side in seen if name == what] for what, _ in seen}
    other = 1 - first
    assert places.pop("finish") == [0, 1]
    launches, calls = ([first, other], [other, first], [first, other]), [first, other, other, first] * 3
    assert places.pop("timed") == [side for launch in launches for side in launch + calls]
    assert places.pop("keep_to") == [first, other] * 9
    assert all(sides == [first, other] for sides in places.values())


def test_both_sides_of_a_duel_see_the_same_values_in_the_same_order(tmp_path, monkeypatch):
    """A kernel whose time depends on values would differ from itself: by 1.6 where an index selection scores again."""
    root = judge_toy.judge_root(tmp_path, trials=2)
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    ready, seen = judge_run.Bench.ready, {}

    def noted(bench, number, mode, drawn, *others, **named):
        orders = [(item.move.name, item.order.tolist()) for item in drawn]
        seen.setdefault(id(bench.worker), []).append((number, mode, orders))
        ready(bench, number, mode, drawn, *others, **named)

    monkeypatch.setattr(judge_run.Bench, "ready", noted)
    with Judge(JudgeOptions(root)) as judge:
        ((one, other),) = duel(judge, definition, sound, sound, (judge.workloads(definition, ())[0].uuid,))
    assert one["status"] == other["status"] == "pass"
    left, right = seen.values()
    assert left == right and len({str(orders) for *_, orders in left}) > 20


def test_launches_are_timed_consecutively_and_eager_calls_one_by_one():
    stages = list(judge_duel.timed_stages({"iters": 7, "trials": 2, "warmup": 9}))
    assert [what for what, _ in stages] == [
        "timed",
        "keep_to",
        *["timed"] * 5,
        "keep_to",
        *["timed"] * 2,
        "keep_to",
    ] * 2
    runs = [run for what, run in stages if what == "timed"]
    launches, calls = ([run for run in runs if run.mode == mode] for mode in ("launch", "call"))
    assert [(run.count, run.warmup, run.opens) for run in launches] == [(7, 9, True), (7, 1, True)]
    assert [(run.warmup, run.opens) for run in calls] == [(9, True), *[(1, False)] * 6, (1, True), *[(1, False)] * 6]
    assert [run.number for run in calls] == list(range(14)) and {run.count for run in calls} == {1}


def test_eager_calls_of_both_sides_run_on_one_cpu(tmp_path, monkeypatch):
    """And nothing else does, also after a candidate that failed there."""
    root = judge_toy.judge_root(tmp_path, (24, 40), trials=2)
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    fails = judge_toy.solution(
        "import os\n\n"
        + judge_toy.HONEST.replace("    rows = ids", "    assert len(os.sched_getaffinity(0)) > 1\n    rows = ids", 1),
        "fails",
    )
    go, every, kept = judge_run.Bench.go, os.sched_getaffinity(0), []

    def noted(bench, mode, count):
        kept.append((bench.worker.pid, mode, os.sched_getaffinity(bench.worker.pid)))
        return go(bench, mode, count)

    monkeypatch.setattr(judge_run.Bench, "go", noted)
    with Judge(JudgeOptions(root)) as judge:
        for candidate, status in ((sound, "pass"), (fails, "runtime_error")):
            kept.clear()
            pairs = list(duel(judge, definition, candidate, sound, ()))
            assert [one["status"] for one, _ in pairs] == [status, status]
            assert all(cpus == every for _, mode, cpus in kept if mode == "launch")
            timed = [(pid, cpus) for pid, mode, cpus in kept if mode == "call" and cpus != every]  # without validation
            assert all(len(cpus) == 1 for _, cpus in timed) and (timed or len(every) == 1)
            if candidate is sound:
                left, right = (
                    [cpus for pid, cpus in timed if pid == side] for side in dict.fromkeys(pid for pid, *_ in kept)
                )
                assert left == right


def test_a_host_that_changes_its_pace_slows_both_sides(tmp_path, monkeypatch):
    """Eager calls of two processes slow down together, by half, for tens of calls: 50 consecutive differ by 14 %."""
    root = judge_toy.judge_root(tmp_path, (24,), iterations=50, trials=3)
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    call, calls = timing.checked_call, []

    def paced(bench, mode):
        """Slower from the 51st call after a launch on."""
        if mode == "launch":
            calls.clear()
        calls.append(mode)
        call(bench, mode)
        return [5e6 if len(calls) <= 51 else 7.5e6]

    monkeypatch.setattr(timing, "checked_call", paced)
    with Judge(JudgeOptions(root)) as judge:
        pairs = list(duel(judge, definition, sound, sound, ()))
    one, other = (record["timing"]["call"]["samples"] for record in pairs[0])
    assert {min(one), max(one)} == {min(other), max(other)} == {5e3, 7.5e3}
    assert sum(one) / sum(other) == pytest.approx(1, abs=0.02)


RIVALS = """import glob
import os
import resource


def rivals():
    found = [pid for path in glob.glob(f"/proc/{os.getppid()}/task/*/children") for pid in open(path).read().split()]
    return [pid for pid in map(int, found) if pid != os.getpid()]


"""
HARMS = {
    "priority": "os.setpriority(os.PRIO_PROCESS, rival, 19)",
    "class": "os.sched_setscheduler(rival, os.SCHED_BATCH, os.sched_param(0))",
    "files": "resource.prlimit(rival, resource.RLIMIT_NOFILE, (99, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
}


@pytest.mark.parametrize("first", [0, 1], ids=["candidate first", "baseline first"])
@pytest.mark.parametrize("harm, named", [("priority", "niceness"), ("class", "class"), ("files", "nofile")])
def test_a_candidate_that_slows_its_rival_down_is_rejected(root, harm, named, first):
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    source = RIVALS + judge_toy.HONEST.replace(
        "    rows = ids", f"    for rival in rivals():\n        {HARMS[harm]}\n    rows = ids", 1
    )
    with Judge(JudgeOptions(root)) as judge:
        pairs = list(duel(judge, definition, judge_toy.solution(source, "harmful"), sound, (), first))
        assert len(pairs) == 2 and all(one["status"] == "tampered" and named in one["detail"] for one, _ in pairs)
        assert {other["status"] for _, other in pairs} <= {"pass", "not_reached"}
        assert {one["status"] for one, _ in duel(judge, definition, sound, sound, (), first)} == {"pass"}


def test_no_worker_comes_from_a_fork_server_that_a_solution_slowed_down(root):
    definition, sound = load_definition(root, toy.NAME), judge_toy.solution(judge_toy.HONEST, "sound")
    source = "import os\n\n" + judge_toy.HONEST.replace(
        "    rows = ids", "    os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)\n    rows = ids", 1
    )
    with Judge(JudgeOptions(root)) as judge, pytest.raises(CannotJudge, match="niceness was .* run again"):
        list(duel(judge, definition, judge_toy.solution(source, "harmful"), sound, (), 1))
        judge.spawn()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_calls_back_to_back_do_not_pay_for_fresh_pages(repository):
    """They took three times as long as single calls, and the judge did not believe the single ones."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={"PYTHONPATH": str(repository / "scripts")}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100  # 40,000 where the heap shrinks and grows again
