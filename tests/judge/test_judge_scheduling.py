"""The scheduling state of a process, as the judge sees it."""

import os
import resource
import subprocess
import sys
import threading

import pytest

from inference_kernels.judge import scheduling
from inference_kernels.judge.scheduling import SCHEDULING, changes, scheduling_state

pytestmark = pytest.mark.no_torch


SLEEPER = [
    sys.executable,
    "-c",
    "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(flush=True)",
]


@pytest.fixture
def sleeper():
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19), "is 19"),
        (
            lambda pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
            f"scheduling class was {os.SCHED_OTHER}, is",
        ),
        (
            lambda pid: resource.prlimit(
                pid, resource.RLIMIT_NOFILE, (99, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1])
            ),
            "limit nofile was",
        ),
        (
            lambda pid: os.setpriority(os.PRIO_PROCESS, max(map(int, os.listdir(f"/proc/{pid}/task"))), 19),
            "niceness of thread ",
        ),
    ],
)
def test_one_change_is_one_line(sleeper, change, said):
    before = scheduling_state(sleeper.pid)
    assert not changes(before, scheduling_state(sleeper.pid)) and len([key for key in before if "niceness" in key]) == 2
    change(sleeper.pid)
    found = changes(before, scheduling_state(sleeper.pid))
    assert len(found) == 1 and said in found[0]


def test_what_comes_and_goes_is_no_change(sleeper):
    before = scheduling_state(os.getpid())
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    during = scheduling_state(os.getpid())
    done.set()
    thread.join()
    assert (
        len(during) > len(before) and not changes(before, during) and not changes(during, scheduling_state(os.getpid()))
    )
    sleeper.kill()
    sleeper.wait()
    assert scheduling_state(sleeper.pid) == {}


def test_a_system_that_does_not_tell_limits_still_tells_scheduling(monkeypatch):
    def refused(*_):
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(scheduling.resource, "prlimit", refused)
    assert set(SCHEDULING) <= set(scheduling_state(os.getpid())) and not any(
        "limit" in key for key in scheduling_state(os.getpid())
    )
