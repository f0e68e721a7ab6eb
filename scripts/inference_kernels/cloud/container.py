"""The command of a container: `python -m inference_kernels.cloud.container JOB`, JOB being a JSON object.

Everything goes to stdout. Exit codes: the capture command's; 3 if a signal killed it, 143 if the container
was told to stop, after which the capture can go on in another one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from inference_kernels.cli import fail
from inference_kernels.cloud.prepare import prepare, read_checkpoint
from inference_kernels.cloud.publish import Publisher
from inference_kernels.cloud.spec import code_digest
from inference_kernels.core.errors import CaptureError, DatasetError

POLL_SECONDS = 0.2
GRACE_SECONDS = 10
KILLED_CHILD, STOPPED = 3, 143


class Stopped(Exception):
    """The container was told to stop: pre-emption, or the end of its time."""


def main() -> int:
    os.dup2(1, 2)
    signal.signal(signal.SIGTERM, _stop)
    job = json.loads(sys.argv[1])
    Path(job["work"]).mkdir(parents=True, exist_ok=True)
    os.chdir(job["work"])
    try:
        if job["do"] == "prepare":
            prepare(job, lambda: commit(job), report)
            return 0
        return capture(job)
    except Stopped:
        return fail("the container was told to stop", STOPPED)
    except DatasetError as error:
        return fail(error.line())


def capture(job: dict[str, Any]) -> int:
    """Run or resume the capture command and publish each finished case; return the command's exit code."""
    require_code(job)
    checkpoint, work = read_checkpoint(job), Path(job["work"])
    publisher = Publisher(Path(job["data"]) / job["capture"], work, lambda: commit(job))
    publisher.begin({"code_sha256": job["code_sha256"], "checkpoint": checkpoint})
    finished = publisher.restore()
    if finished:
        report(f"cases in the volume: {', '.join(finished)}")
    if not publisher.complete:
        code = run_capture(job["command"] + model_flags(checkpoint), publisher)
        if code:
            return code
    inventory = publisher.take_inventory()
    report(f"{len(inventory['files'])} files, {inventory['bytes']} bytes in the volume")
    return 0


def require_code(job: dict[str, Any]) -> None:
    """CaptureError unless the container holds exactly the code that the command was planned with."""
    found = code_digest(Path(job["repository"]))
    if found != job["code_sha256"]:
        raise CaptureError(
            expected=f"code {job['code_sha256'][:12]}",
            found=found[:12],
            where=job["repository"],
            remedy="the checkout changed while the command ran: run it again",
        )


def run_capture(command: list[str], publisher: Publisher) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            publish_live(publisher)
            time.sleep(POLL_SECONDS)
    finally:
        end(child)
        publisher.publish()
        publisher.publish_log()
    return KILLED_CHILD if child.returncode < 0 else child.returncode


def publish_live(publisher: Publisher) -> None:
    try:
        if publisher.publish():
            report("committed")
    except FileNotFoundError as error:
        # Excluding a near tie deletes files just before the manifest stops listing them.
        report(f"{error.filename}: gone, looking again")


def end(child: subprocess.Popen) -> None:
    """Stop a capture that still runs, so that nothing writes afterwards."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def model_flags(checkpoint: dict[str, Any]) -> list[str]:
    if checkpoint["class"] == "seeded":
        return []
    return ["--model-id", checkpoint["model_id"], "--model-revision", checkpoint["revision"]]


def commit(job: dict[str, Any]) -> None:
    """Make the volumes durable and visible.

    `sync` of its mount point commits a v2 volume: https://modal.com/docs/guide/sandbox-files
    """
    subprocess.run(["sync", job["data"], job["model"]] if job["do"] == "prepare" else ["sync", job["data"]], check=True)


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
