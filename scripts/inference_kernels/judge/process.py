"""Worker processes as the judge sees them: start, ask, limit memory and time, end, explain the end."""

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import EnvironmentMissing
from inference_kernels.core.native import INSTALL
from inference_kernels.judge.channel import ChannelClosed, receive, send
from inference_kernels.judge.scheduling import SCHEDULING, changes, scheduling_state
from inference_kernels.judge.verdicts import STATUSES, CannotJudge, Rejected, is_rejection
from inference_kernels.judge.window import Window, create_window
from inference_kernels.judge.worker.fork import children

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 1.0
LOG_TAIL = 800
PAGE = os.sysconf("SC_PAGE_SIZE")
# Each worker compiles into its own folder; compile pools would be processes left running.
PRIVATE_FOLDERS = ("FIB_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


class ForkServer:
    """Owner of the fork server process; a context manager that ends it and every worker."""

    def __init__(self, device: str, visible_gpu: str | None = None, threads: int = 1):
        self.device, self.threads = device, threads
        self.control, theirs = socket.socketpair()
        # The server is killed in the end: what it would remove when it exits is removed here.
        self.folder = tempfile.TemporaryDirectory(prefix="judge-", ignore_cleanup_errors=True)
        environment = dict(
            os.environ,
            OPENBLAS_NUM_THREADS="1",
            PYTHONDONTWRITEBYTECODE="1",
            FIB_CACHE_PATH=self.folder.name,
            CUDA_VISIBLE_DEVICES=visible_gpu or "",
            PYTHONPATH=os.pathsep.join(
                [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        )
        for switch in ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING", "TRITON_INTERPRET"):
            environment.pop(switch, None)
        if device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inference_kernels.judge.worker.fork", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.workers: list[WorkerProcess] = []
        self._ready = False

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self.workers):
            worker.end()
        self.control.close()
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def ask(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        try:
            if not self._ready:
                self._await_ready()
            send(self.control, message)
            if descriptors:
                socket.send_fds(self.control, [b"d"], list(descriptors))
            return receive(self.control)
        except ChannelClosed as error:
            raise CannotJudge(
                expected="a fork server that answers",
                found=f"{error}",
                where="judge",
                remedy="run again; a solution may have killed it",
            ) from error

    def _await_ready(self) -> None:
        answer = receive(self.control)
        if not answer["ready"]:
            raise EnvironmentMissing(
                expected="torch and flashinfer-bench", found=answer["error"], where=sys.executable, remedy=INSTALL
            )
        self._ready, self.scheduling = True, scheduling_state(self.process.pid)

    def spawn(self, memory_limit: int) -> "WorkerProcess":
        worker = WorkerProcess(self, memory_limit)
        self.workers.append(worker)
        if found := worker.disturbed():
            raise CannotJudge(
                expected="a fork server whose scheduling state is as at its start",
                found=found,
                where="judge",
                remedy="run again without the last solution, which may have done that",
            )
        return worker


class WorkerProcess:
    """One forked worker. `ask` raises Rejected when the process ends, hangs or grows too large."""

    def __init__(self, server: ForkServer, memory_limit: int):
        self.server, self.memory_limit = server, memory_limit
        self.folder = tempfile.TemporaryDirectory(prefix="judge-", ignore_cleanup_errors=True)
        shared = create_window()
        self.window = Window(shared, server.device)
        self.channel, theirs = socket.socketpair()
        log = os.open(Path(self.folder.name, "log"), os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        environment = {name: str(Path(self.folder.name, name.lower())) for name in PRIVATE_FOLDERS}
        self.log = log
        self.pid = server.ask(
            {
                "do": "spawn",
                "folder": self.folder.name,
                "device": server.device,
                "threads": server.threads,
                "environment": environment | {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
            },
            [theirs.fileno(), shared, log],
        )["pid"]
        theirs.close()
        os.close(shared)
        self._left = server.scheduling

    def ask(self, do: str, timeout: float, wants: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
        """Send a request and wait for its answer, which must have the keys `wants`; one with `rejected` is raised."""
        return self.answer(self.post(do, **fields), timeout, wants)

    def post(self, do: str, **fields: Any) -> tuple[str, str]:
        """Send a request without waiting; `answer` takes what it returns. The worker answers in the order of requests.

        The nonce ties the answer to the request, so that a reply written by somebody else is seen as such.
        """
        nonce = secrets.token_hex(8)
        try:
            send(self.channel, {"do": do, "nonce": nonce} | fields)
        except ChannelClosed as error:
            raise Rejected(*self._explain_end(str(error))) from error
        return do, nonce

    def answer(self, posted: tuple[str, str], timeout: float, wants: tuple[str, ...] = ()) -> dict[str, Any]:
        """Wait for the answer to a posted request, as `ask` does."""
        do, nonce = posted
        try:
            self._wait(do, timeout)
            answer = receive(self.channel)
        except ChannelClosed as error:
            raise Rejected(*self._explain_end(str(error))) from error
        if answer.pop("nonce", None) != nonce:
            raise Rejected("tampered", "a reply that the harness did not send")
        if "rejected" in answer:
            raise Rejected(*self._reason(answer["rejected"]))
        if not set(wants) <= set(answer):
            raise Rejected("tampered", f"an answer to {do!r} without {', '.join(wants)}")
        return answer

    @staticmethod
    def _reason(value: Any) -> tuple[str, str]:
        """Read status and detail as the worker gave them; `tampered` if it is no known status."""
        if isinstance(value, list) and len(value) == 2 and value[0] in STATUSES and is_rejection(value[0]):
            return value[0], str(value[1])
        return "tampered", f"a rejection that the harness does not know: {value!r:.100}"

    def _wait(self, do: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not select.select([self.channel], [], [], POLL_SECONDS)[0]:
            if time.monotonic() > deadline:
                self.end()
                raise Rejected("timeout", f"no answer to {do!r} within {timeout:g} s: killed")
            used = self.resident_bytes()
            if used > self.memory_limit:
                self.end()
                raise Rejected(
                    "out_of_memory",
                    f"{used / 2**30:.1f} GiB of host memory; the limit is {self.memory_limit / 2**30:.1f} GiB: killed",
                )

    def resident_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def keep_to(self, cpu: int | None) -> None:
        """Pin its main thread, and threads that it starts later, to this CPU; None: to all CPUs of the judge.

        It steadies times; where the system refuses, nothing else depends on it.
        """
        with contextlib.suppress(OSError):
            os.sched_setaffinity(self.pid, os.sched_getaffinity(0) if cpu is None else {cpu})

    def leave(self) -> None:
        """Note its scheduling state at the end of its stage."""
        self._left = scheduling_state(self.pid)

    def disturbed(self) -> str:
        """Say what another process changed in its scheduling state since it was left; empty if nothing."""
        return "; ".join(changes(self._left, scheduling_state(self.pid)))

    def rescheduled(self) -> str:
        """Say how the scheduling of its main thread has changed since it began; empty if it has not."""
        first = {name: value for name, value in self.server.scheduling.items() if name in SCHEDULING}
        return "; ".join(changes(first, scheduling_state(self.pid)))

    def strays(self) -> int:
        """Count processes that it started and that still run, also those that escaped to another parent."""
        return len(children(self.pid)) + self.server.ask({"do": "strays"})["count"]

    def _explain_end(self, reason: str) -> tuple[str, str]:
        tail = self.log_tail()
        status = self.end(patient=True)
        if status is None:
            return "tampered", f"broke the protocol: {reason}"
        found = f"ended by {signal.Signals(-status).name}" if status < 0 else f"left with exit code {status}"
        return "crashed", f"{found}; its last output: {tail or 'none'}"

    def log_tail(self) -> str:
        size = os.fstat(self.log).st_size
        return os.pread(self.log, LOG_TAIL, max(0, size - LOG_TAIL)).decode(errors="replace").strip()

    def end(self, patient: bool = False) -> int | None:
        """Kill the worker's process group and release everything.

        Returns its exit status, None if it had been ended before. patient: it seems to be ending by itself;
        wait a moment for its own status instead of that of the kill.
        """
        if self.pid is None:
            return None
        pid, self.pid = self.pid, None
        self.server.workers.remove(self)
        self.channel.close()
        deadline = time.monotonic() + (PATIENCE_SECONDS if patient else 0.0)
        while _state(pid) not in ("Z", "X", "") and time.monotonic() < deadline:
            time.sleep(0.005)
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        status = self.server.ask({"do": "reap", "pid": pid})["status"]
        self.window.close()
        os.close(self.log)
        self.folder.cleanup()
        return status


def any_cpu() -> int:
    """Choose one of the CPUs that the judge may use at random."""
    return secrets.choice(sorted(os.sched_getaffinity(0)))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
