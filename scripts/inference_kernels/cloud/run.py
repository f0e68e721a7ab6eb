"""Run a rented capture from the locks to the retrieved files. Every exit gives back container and locks."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from inference_kernels.capture.engine import Report
from inference_kernels.cloud.plan import CapturePlan
from inference_kernels.cloud.retrieve import CallSelection, Retrieval
from inference_kernels.cloud.spec import (
    CAPTURES_VOLUME,
    CHECKPOINT,
    LOG,
    OUT_OF_TIME,
    TAKEN_AWAY,
    Job,
    JobSpec,
    Runner,
    model_volume,
)
from inference_kernels.core.errors import CaptureError, LockHeld
from inference_kernels.core.files import parse_json, write_bytes
from inference_kernels.core.locks import locked, network_warning

# A pre-empted container is replaced, as finished cases are in the volume, but not endlessly.
MAX_CONTAINERS = 8
ENDING = (signal.SIGTERM, signal.SIGHUP)


def run(
    plan: CapturePlan,
    runner: Runner,
    target: Path,
    locks: Path,
    lock_timeout: float,
    selection: CallSelection,
    report: Report,
) -> dict[str, Any]:
    """Prepare a model, or capture and retrieve to `target`; return the summary.

    CaptureError if a lock is held, the container fails, or a file does not arrive as it was.
    """
    plan.require_sendable()
    with ending_signals(), exclusive(plan, locks, lock_timeout, report):
        if plan.choices.uploads:
            runner.upload(CAPTURES_VOLUME, plan.choices.uploads)
        try:
            containers = run_containers(plan, runner, report)
        except CaptureError:
            fetch_log(plan, runner, target)
            raise
        if plan.choices.prepare_model:
            return {"prepared": read_marker(plan, runner), "containers": containers}
        retrieval = Retrieval(runner, plan.choices.name, target, report, fresh=True)
        return {"containers": containers} | retrieval.run(selection)


def retrieve_only(
    plan: CapturePlan,
    runner: Runner,
    target: Path,
    locks: Path,
    lock_timeout: float,
    selection: CallSelection,
    report: Report,
) -> dict[str, Any]:
    """Go on with a retrieval, by the saved inventory if there is one; rent nothing."""
    with ending_signals(), exclusive(plan, locks, lock_timeout, report, gpus=False):
        return Retrieval(runner, plan.choices.name, target, report, fresh=False).run(selection)


@contextmanager
def exclusive(plan: CapturePlan, folder: Path, timeout: float, report: Report, gpus: bool = True) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    warning = network_warning(folder)
    if warning:
        report(f"warning: {warning}")
    try:
        with locked(folder, plan.lock_names if gpus else plan.lock_names[:1], timeout):
            yield
    except LockHeld as error:
        raise CaptureError(
            expected="locks that nobody holds",
            found=error.found,
            where=error.where,
            remedy="wait for that process, or raise --lock-timeout",
        ) from error


def run_containers(plan: CapturePlan, runner: Runner, report: Report) -> int:
    """Run the plan's command until it ends by itself; return how many containers that took."""
    spec = plan.spec(runner.layout, runner.python)
    report(f"{spec.name}: {plan.gpus or 'no'} GPUs, time limit {spec.seconds / 3600:.1f} h")
    for number in range(1, MAX_CONTAINERS + 1):
        code, error = run_once(runner, spec, report)
        if code == 0:
            return number
        if code == OUT_OF_TIME:
            raise CaptureError(
                expected=f"an end within {spec.seconds} s",
                found="none",
                where=spec.name,
                remedy="finished cases are in the volume: the same command goes on",
            )
        if code not in TAKEN_AWAY:
            raise CaptureError(
                expected="exit code 0",
                found=f"{code} ({error or 'no error line'})",
                where=spec.name,
                remedy="see the output above and engine.log; finished cases are in the volume",
            )
        report(f"{spec.name}: the container was taken away (exit code {code}); starting another one")
    raise CaptureError(
        expected=f"an end in {MAX_CONTAINERS} containers",
        where=spec.name,
        found="all taken away",
        remedy="finished cases are in the volume: the same command goes on",
    )


def run_once(runner: Runner, spec: JobSpec, report: Report) -> tuple[int, str]:
    """Run one container; return its exit code and the last error line of its output."""
    job: Job | None = None
    error = ""
    try:
        with deferred_signals():
            job = runner.start(spec)
        for line in job.lines():
            report(line)
            error = line.removeprefix("error: ") if line.startswith("error: ") else error
        return job.wait(), error
    finally:
        if job:
            with deferred_signals():
                job.release()


def fetch_log(plan: CapturePlan, runner: Runner, target: Path) -> None:
    """Fetch the engine's output of a failed capture, if there is any."""
    with suppress(FileNotFoundError):
        log = b"".join(runner.read(CAPTURES_VOLUME, f"{plan.folder}/{LOG}"))
        write_bytes(target / LOG, log)


def read_marker(plan: CapturePlan, runner: Runner) -> dict[str, Any]:
    name = f"{plan.checkpoint}.{CHECKPOINT}"
    try:
        text = b"".join(runner.read(model_volume(plan.choices.kind), name)).decode()
    except FileNotFoundError as error:
        raise CaptureError(
            expected=f"{name} in the volume", found="none", where=plan.job_name, remedy="run the same command again"
        ) from error
    return parse_json(text, name)


@contextmanager
def ending_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the program like an exception, so that everything is given back."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Hold signals back while a container is started or given back: one in between would leave it running."""
    numbers, arrived = (*ENDING, signal.SIGINT), []
    before = {number: signal.signal(number, lambda number, frame: arrived.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in arrived[:1]:
        signal.raise_signal(number)
