"""The whole path of a rented capture, on the local runner: capture, pre-emption, resume, retrieve, import."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import toy
from helpers.modal_toys import CASES, REPOSITORY, ToyRental
from inference_kernels.capture.run import read_manifest
from inference_kernels.cloud.retrieve import CallSelection
from inference_kernels.cloud.run import retrieve_only, run_containers
from inference_kernels.cloud.spec import Layout
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.locks import locked

DRIVER = """
import sys
from pathlib import Path
from helpers import modal_toys
from inference_kernels.cli import run_main
rental = modal_toys.ToyRental.__new__(modal_toys.ToyRental)
path = Path(sys.argv[1])
rental.path, rental.control, rental.checkout, rental.lines = path, path / "control", path / "checkout", []
run_main(lambda: rental.run() and 0)
"""


@pytest.fixture
def rental(tmp_path) -> ToyRental:
    return ToyRental(tmp_path)


def workloads(root: Path) -> list[str]:
    return [
        json.loads(line)["workload"]["uuid"]
        for path in root.glob("workloads/*/*.jsonl")
        for line in path.read_text().splitlines()
    ]


def test_a_capture_that_is_killed_and_then_stopped_is_finished_in_a_third_container(rental, tmp_path):
    rental.tell("landscape", "kill")
    rental.tell("transparent", "stop")
    summary = rental.run()
    assert summary["containers"] == 3 and summary["present"] == 0
    assert rental.served == ["text_to_image", "landscape", "landscape", "transparent", "transparent"]
    assert [f"exit code {code}" in " ".join(rental.lines) for code in (137, 143)] == [True, True]
    inventory = json.loads((rental.target / "inventory.json").read_text())
    here = {path.relative_to(rental.target).as_posix() for path in rental.target.rglob("*") if path.is_file()}
    assert here == set(inventory["files"]) | {"inventory.json"}
    assert all(sha256_file(rental.target / name) == entry["sha256"] for name, entry in inventory["files"].items())
    assert {"engine.log", "results/landscape_0.png", "results/square.png"} <= here
    root = toy.toy_root(tmp_path / "dataset")
    assert toy.import_run(rental.target / "dataset", root) == 3
    assert len(set(workloads(root))) == 3 and toy.import_run(rental.target / "dataset", root) == 0
    # Nothing is left but the volumes and the empty lock files.
    assert [path.name for path in (tmp_path / "root" / "jobs").iterdir()] == ["capture-toy.lock"]
    again = rental.run()
    assert again["containers"] == 1 and again["fetched"] == 0 and len(rental.served) == 5


def test_a_failing_capture_keeps_its_finished_cases_and_is_not_started_again(rental):
    rental.tell("transparent", "fail")
    with pytest.raises(CaptureError, match="the toy engine fails"):
        rental.run()
    assert list(read_manifest(rental.folder / "dataset")["cases"]) == ["text_to_image", "landscape"]
    assert [path.name for path in rental.target.iterdir()] == ["engine.log"]
    with pytest.raises(CaptureError, match="retrieve-only"):
        rental_retrieve(rental)
    (rental.checkout / "tasks" / "note.txt").write_text("changed")
    with pytest.raises(CaptureError, match="code it was begun with"):
        rental.run()


def test_a_crash_of_the_capture_and_a_changed_checkout_end_the_command(rental):
    rental.tell("text_to_image", "crash")
    with pytest.raises(CaptureError, match="exit code 0; found 3"):
        rental.run()
    with pytest.raises(CaptureError, match="the checkout changed"):
        rental.run(code_sha256="0" * 64)


def rental_retrieve(rental: ToyRental, selection: CallSelection = CallSelection()) -> dict:
    plan = rental.plan()
    return retrieve_only(
        plan, rental.runner(plan), rental.target, rental.path / "locks", 0.0, selection, rental.lines.append
    )


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_give_back_the_container_and_the_locks(rental, number, code):
    rental.tell("text_to_image", "hang")
    paths = os.pathsep.join([str(REPOSITORY / "scripts"), str(REPOSITORY / "tests")])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(rental.path)], stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    )
    hanging = rental.control / "hanging"
    wait_for(hanging.exists)
    container = int(hanging.read_text())
    with pytest.raises(CaptureError, match="locks that nobody holds"):
        rental.run()
    driver.send_signal(number)
    driver.communicate(timeout=30)
    assert driver.returncode == code
    wait_for(lambda: not Path(f"/proc/{container}").exists())
    assert [path.name for path in (rental.path / "root" / "jobs").iterdir()] == ["capture-toy.lock"]
    with locked(rental.path / "locks", rental.plan().lock_names, 0.0):
        assert not (rental.target / "dataset").exists()


def wait_for(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


class StubJob:
    def __init__(self, log, outcome):
        self.log, self.outcome = log, outcome

    def lines(self):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        yield "error: said the container"

    def wait(self):
        return self.outcome

    def release(self):
        self.log.append("released")


class StubRunner:
    """Containers with given ends."""

    python = "python3"

    def __init__(self, *outcomes):
        self.layout, self.outcomes, self.log = Layout("/task"), list(outcomes), []

    def start(self, spec):
        self.log.append("started")
        return StubJob(self.log, self.outcomes.pop(0))


@pytest.mark.parametrize(
    "outcomes, raised, words",
    [
        ([KeyboardInterrupt()], KeyboardInterrupt, None),
        ([SystemExit(143)], SystemExit, None),
        ([ValueError("a bug")], ValueError, "a bug"),
        ([2], CaptureError, "2 \\(said the container\\)"),
        ([3], CaptureError, "exit code 0"),
        ([124], CaptureError, "an end within"),
        ([137] * 8, CaptureError, "all taken away"),
        ([137, 143, 0], None, None),
    ],
)
def test_every_container_is_released_whatever_happens(rental, outcomes, raised, words):
    plan = rental.plan()
    runner = StubRunner(*outcomes)
    if raised:
        with pytest.raises(raised, match=words):
            run_containers(plan, runner, rental.lines.append)
    else:
        assert run_containers(plan, runner, rental.lines.append) == len(outcomes)
    assert runner.log == ["started", "released"] * len(outcomes)


def test_a_signal_during_the_start_waits_until_the_container_can_be_released(rental):
    plan = rental.plan()
    runner = StubRunner(0)
    start = runner.start

    def interrupted(spec):
        os.kill(os.getpid(), signal.SIGINT)
        return start(spec)

    runner.start = interrupted
    with pytest.raises(KeyboardInterrupt):
        run_containers(plan, runner, rental.lines.append)
    assert runner.log == ["started", "released"]


def test_a_local_container_that_runs_out_of_time_is_stopped(rental):
    rental.tell("text_to_image", "hang")
    with pytest.raises(CaptureError, match="an end within 1 s"):
        rental.run(timeout_seconds=1)


def test_two_local_containers_of_one_name_exclude_each_other(rental):
    rental.tell("text_to_image", "hang")
    plan = rental.plan()
    runner = rental.runner(plan)
    job = runner.start(plan.spec(runner.layout, runner.python))
    with pytest.raises(CaptureError, match="no running container"):
        runner.start(plan.spec(runner.layout, runner.python))
    job.release()
    job.release()
    assert CASES and not (rental.path / "root" / "jobs" / "capture-toy").exists()
