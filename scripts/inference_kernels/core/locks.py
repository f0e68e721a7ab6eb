"""One exclusive lock file per GPU, named after the physical card's UUID; the lock dies with its process.

Standard library only. `flock` may not exclude other hosts on a network file system, so `network_warning` names one.
"""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inference_kernels.core.errors import LockHeld

NETWORK_SYSTEMS = ("nfs", "cifs", "smb", "fuse", "lustre", "beegfs", "gpfs", "ceph", "9p", "afs", "glusterfs")
POLL_SECONDS = 0.1
MOUNTS = Path("/proc/mounts")


def lock_path(folder: Path, physical_uuid: str) -> Path:
    return folder / f"{physical_uuid}.lock"


@contextmanager
def locked(folder: Path, physical_uuids: list[str], timeout: float) -> Iterator[None]:
    """Hold the locks of all cards, taken in sorted order; LockHeld names the holder after `timeout` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for uuid in sorted(set(physical_uuids)):
            stack.enter_context(_one_lock(lock_path(folder, uuid), timeout))
        yield


@contextmanager
def _one_lock(path: Path, timeout: float) -> Iterator[None]:
    # Not inheritable (the default of os.open), so that no child keeps the lock alive.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        _wait(descriptor, path, timeout)
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": " ".join(sys.argv)[:200],
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
                raise LockHeld(
                    expected="a free GPU",
                    found=f"a lock held by {holder or 'an unknown process'}",
                    where=str(path),
                    remedy="wait, or raise --lock-timeout",
                ) from error
            time.sleep(POLL_SECONDS)


def network_warning(folder: Path, mounts: str | None = None) -> str:
    """Warn if `folder` lies on a network file system; an empty string otherwise.

    mounts: the text of /proc/mounts, read if None.
    """
    real = os.path.realpath(folder)
    if mounts is None:
        mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
    points = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) >= 3]
    inside = [(point, kind) for point, kind in points if (real + "/").startswith(point.rstrip("/") + "/")]
    point, kind = max(inside, key=lambda item: len(item[0]), default=("", ""))
    if kind.lower().startswith(NETWORK_SYSTEMS):
        return f"{folder} is on {kind} ({point}): locks there may exclude nobody; choose a local folder"
    return ""
