"""Run captures without an account: the same container command as a subprocess in a scratch folder.

<root>/volumes/<volume>/    kept, as rented volumes are
<root>/jobs/<name>/         a container's file system: fresh at every start, removed at its end
<root>/jobs/<name>.lock     held by the container's process, so it is free once that has died
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from inference_kernels.capture.engine import ENGINE_PYTHON
from inference_kernels.cloud.spec import OUT_OF_TIME, JobSpec, Layout, upload_files
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import atomic_writer
from inference_kernels.core.hashing import BLOCK
from inference_kernels.core.layout import REPOSITORY

GRACE_SECONDS = 15


class LocalRunner:
    """root: scratch folder. name: of the job, whose folder is the base of the layout."""

    def __init__(self, root: Path, name: str, repository: Path = REPOSITORY, python: str | None = None):
        self.root, self.repository = root.resolve(), repository
        self.python = python or str(ENGINE_PYTHON if ENGINE_PYTHON.exists() else sys.executable)
        self.layout = Layout(str(self.root / "jobs" / name))

    def volume(self, name: str) -> Path:
        path = self.root / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def start(self, spec: JobSpec) -> "LocalJob":
        base = Path(self.layout.base)
        base.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(base.with_name(base.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o666)
        try:
            self._claim(lock, spec.name)
            self._build(base, spec)
            environment = os.environ | spec.environment | {"SGLANG_CACHE_DIR": str(base / "work" / "cache")}
            process = subprocess.Popen(
                spec.command,
                cwd=base / "work",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=[lock],
            )
        finally:
            os.close(lock)
        return LocalJob(process, base, spec.seconds)

    def _claim(self, lock: int, name: str) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CaptureError(
                expected=f"no running container {name}",
                found="one",
                where=str(self.root),
                remedy="wait until it ends, then run the same command again",
            ) from error

    def _build(self, base: Path, spec: JobSpec) -> None:
        shutil.rmtree(base, ignore_errors=True)
        for name in upload_files(self.repository):
            target = base / "repository" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.repository / name, target)
        for place, volume in spec.volumes.items():
            (base / place).symlink_to(self.volume(volume))
        (base / "work").mkdir()

    def upload(self, volume: str, files: dict[str, Path]) -> None:
        for name, source in files.items():
            with open(source, "rb") as reader, atomic_writer(self.volume(volume) / name) as writer:
                shutil.copyfileobj(reader, writer)

    def read(self, volume: str, path: str) -> Iterator[bytes]:
        with open(self.volume(volume) / path, "rb") as stream:
            while block := stream.read(BLOCK):
                yield block


class LocalJob:
    """A container that is a process group of its own."""

    def __init__(self, process: subprocess.Popen, base: Path, seconds: int):
        self.process, self.base, self.timed_out = process, base, False
        self.timer = threading.Timer(seconds, self._out_of_time)
        self.timer.daemon = True
        self.timer.start()

    def lines(self) -> Iterator[str]:
        yield from (line.rstrip("\n") for line in self.process.stdout)

    def wait(self) -> int:
        code = self.process.wait()
        return OUT_OF_TIME if self.timed_out else code if code >= 0 else 128 - code

    def _out_of_time(self) -> None:
        self.timed_out = True
        self._signal(signal.SIGTERM)

    def release(self) -> None:
        self.timer.cancel()
        if self.process.poll() is None:
            self._signal(signal.SIGTERM, group=False)
            try:
                self.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
        # Engine workers may outlive the command; a rented container would end them with it.
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def _signal(self, number: int, group: bool = True) -> None:
        try:
            (os.killpg if group else os.kill)(self.process.pid, number)
        except ProcessLookupError:
            return
