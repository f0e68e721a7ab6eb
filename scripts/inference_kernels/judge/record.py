"""The record of one judged workload: how it begins, what fills it, how its seconds add up."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.tasks import Task, task_path
from inference_kernels.core.types import Definition
from inference_kernels.core.workloads import Available
from inference_kernels.judge.bench import Bench
from inference_kernels.judge.candidate import text_hash
from inference_kernels.judge.floor import REJECT_BELOW, Floor
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.types import JudgeRecord, RawSolution
from inference_kernels.judge.verdicts import Rejected


def new_record(subject: Subject, item: Available, task: Task, seed: int) -> JudgeRecord:
    """Begin the record of one solution on one workload, as one that passes."""
    judge = subject.judge
    workload = item.workload
    return {
        "solution": subject.name,
        "definition": subject.definition["name"],
        "workload": item.uuid,
        "class": item.data_class,
        "axes": workload["axes"],
        "status": "pass",
        "detail": "",
        "against": judge.options.against,
        "timed": task.timing["timed"],
        "group_axis": task.group_axis,
        "comparisons": {},
        "timing": {},
        "notes": [],
        "checked_calls": {},
        "floor": None,
        "seed": seed,
        "seconds": {},
        "clocks": {},
        "environment": judge.environment,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hashes": work_hashes(judge, subject.definition, subject.solution, item),
    }


def work_hashes(judge: Judge, definition: Definition, solution: RawSolution, item: Available) -> dict[str, str]:
    """Hash all that a record of this solution and workload depends on, but the machine.

    A workload names its inputs by their hashes, a capture record its outputs. Time and memory limits are left out:
    what passed within some passed.
    """
    against, options = judge.options.against, judge.options
    truth = definition["reference"] if against == "reference" else judge.saved_outputs.get(item.uuid)
    return {
        "solution": text_hash(solution),
        "workload": text_hash(item.workload),
        "task": sha256_file(task_path(judge.root, definition["name"])),
        "definition": text_hash(definition),
        "truth": text_hash([against, truth]),
        "options": text_hash({"validation_only": options.validation_only, "repeat": options.limits.repeat}),
    }


def reject(record: JudgeRecord, error: Rejected) -> None:
    """Write a broken rule into the record."""
    record["status"], record["detail"] = error.status, error.detail


def fill_record(record: JudgeRecord, bench: Bench | None, floor: Floor | None) -> None:
    """Copy what the bench found; a time below the floor turns a passing record into a rejection."""
    record["seconds"] = summed_up(record["seconds"] | (bench.sheet.seconds if bench else {}))
    if bench is not None:
        sheet = bench.sheet
        record["comparisons"], record["notes"] = sheet.comparisons, sheet.notes
        record["checked_calls"] = sheet.checked_calls
        record["timing"] = {mode: timing.to_json() for mode, timing in sheet.timing.items()}
    if floor is not None:
        record["floor"] = floor.to_json()
        for mode, timing in record["timing"].items():
            timing["floor_ratio"] = timing["median_us"] / floor.microseconds if floor.microseconds else None
            if record["status"] == "pass" and timing["median_us"] < REJECT_BELOW * floor.microseconds:
                detail = (
                    f"{mode} takes {timing['median_us']:.2f} us; bytes and operations need "
                    f"{floor.microseconds:.2f} us at this device's measured peaks"
                )
                reject(record, Rejected("impossible_time", detail))


@contextlib.contextmanager
def counted(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time that the block takes to `seconds[name]`."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun


@contextlib.contextmanager
def meanwhile(work: Callable[[], dict[str, Any]]) -> Iterator[Future[dict[str, Any]]]:
    """Run `work` in a thread beside the block; nvidia-smi takes 50 ms."""
    with ThreadPoolExecutor(1) as aside:
        yield aside.submit(work)


def summed_up(seconds: dict[str, float]) -> dict[str, float]:
    """Round the seconds and add `overhead`: what the harness took beside the solution's own time and worker start."""
    own = sum(seconds.get(name, 0.0) for name in ("start", "first_calls", "kernels"))
    return {name: round(value, 3) for name, value in (seconds | {"overhead": seconds.get("total", 0.0) - own}).items()}
