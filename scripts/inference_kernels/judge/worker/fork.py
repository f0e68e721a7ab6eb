"""The fork server: one process that has imported torch and the native builder, and forks a worker on request.

It never sees a tensor or a solution, so a worker inherits no secret. A worker gets its own process group and dies with
the server, which dies with the judge.
"""

import ctypes
import glob
import os
import signal
import socket
import sys
from typing import Any

from inference_kernels.judge.channel import ChannelClosed, receive, send

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WORKERS: set[int] = set()


def children(pid: int) -> list[int]:
    """List the live child processes of all threads of `pid` (Linux; elsewhere none are seen)."""
    found: list[int] = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path) as stream:
                found += map(int, stream.read().split())
        except OSError:
            # The thread ended after the listing; its children are another thread's now.
            continue
    return found


def process_control(option: int, value: int) -> None:
    """Call prctl(2) on Linux; elsewhere the guarantee that it gives is absent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Serve spawn requests on the socket whose descriptor is the only argument."""
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        preload()
        send(control, {"ready": True})
    except ImportError as error:
        send(control, {"ready": False, "error": str(error)})
        return
    while True:
        try:
            serve(control)
        except ChannelClosed:
            return


def preload() -> None:
    """Import what every worker needs, without starting a CUDA context or a thread pool."""
    import importlib

    from inference_kernels.core.native import native_data

    native_data()
    for name in ("torch", "flashinfer_bench.compile", "inference_kernels.judge.worker.worker"):
        importlib.import_module(name)


def serve(control: socket.socket) -> None:
    message = receive(control)
    if message["do"] == "spawn":
        send(control, {"pid": spawn(control, message)})
    elif message["do"] == "reap":
        send(control, reap(message["pid"]))
    elif message["do"] == "strays":
        send(control, {"count": end_strays()})


def spawn(control: socket.socket, message: dict[str, Any]) -> int:
    """Fork a worker with the socket, shared-memory buffer and log received with the message; return its pid."""
    _, descriptors, _, _ = socket.recv_fds(control, 1, 3)
    pid = os.fork()
    if pid:
        WORKERS.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        control.close()
        become_worker(descriptors, message)
    finally:
        os._exit(97)


def become_worker(descriptors: list[int], message: dict[str, Any]) -> None:
    """Make the forked child a worker: own process group, own folder, output in a log; serve until told to stop."""
    channel, window, log = descriptors
    os.setsid()
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(message["environment"])
    os.chdir(message["folder"])
    from inference_kernels.judge.worker.worker import Worker

    Worker(socket.socket(fileno=channel), window, message["device"], message["threads"]).serve()
    os._exit(0)


def reap(pid: int) -> dict[str, Any]:
    """Return the exit status of a worker that is dead or dying; kill what it left behind."""
    _, status = os.waitpid(pid, 0)
    WORKERS.discard(pid)
    end_strays()
    return {"status": os.waitstatus_to_exitcode(status)}


def end_strays() -> int:
    """Kill what workers left: as the subreaper, this process becomes the parent of whatever escaped from them."""
    strays = [child for child in children(os.getpid()) if child not in WORKERS]
    for stray in strays:
        os.kill(stray, signal.SIGKILL)
        os.waitpid(stray, 0)
    return len(strays)


if __name__ == "__main__":
    main()
