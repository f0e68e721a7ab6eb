"""Judge one solution on the workloads of its definition, alone on its GPU."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from inference_kernels.core.tasks import Task
from inference_kernels.core.workloads import Available
from inference_kernels.judge.bench import Bench
from inference_kernels.judge.candidate import text_hash
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.record import counted, fill_record, meanwhile, new_record
from inference_kernels.judge.timing import record_timing, time_modes, trial
from inference_kernels.judge.verdicts import Rejected


def judge_workload(subject: Subject, item: Available, task: Task) -> dict[str, Any]:
    """Validate (and time) one solution on one workload. Never raises Rejected: the record says it all."""
    judge, seed = subject.judge, secrets.randbits(48)
    record, bench, floor = new_record(subject, item, task, seed), None, None
    with counted(record["seconds"], "total"):
        try:
            with meanwhile(judge.state) as before, counted(record["seconds"], "load"):
                case = judge.load(subject.definition, item, task, seed)
            floor = judge.floor(case)
            record["clocks"]["before"] = before.result()
            with counted(record["seconds"], "start"):
                bench = subject.bench(case)
            bench.load()
            bench.validate()
            if not judge.options.validation_only:
                time_alone(bench, task)
            with meanwhile(judge.state) as after:
                bench.finish()
            record["clocks"]["after"] = after.result()
        except Rejected as error:
            record |= {"status": error.status, "detail": error.detail}
            subject.retire()
    fill_record(record, bench, floor)
    return record


def time_alone(bench: Bench, task: Task) -> None:
    iterations, warmup, trials = (task.timing[key] for key in ("iters", "warmup", "trials"))
    try:
        time_modes(bench, iterations, warmup, trials)
    except Rejected as error:
        if error.status == "not_capturable":
            bench.sheet.notes.append("eager call time only: the launch cannot be captured in a graph")
            with contextlib.suppress(Rejected):
                record_timing(bench, "call", trial(bench, "call", iterations, warmup), iterations)
        raise


def benchmark(
    judge: Judge, definition: dict, solution: dict, only: tuple[str, ...], skip: set[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """Records of one solution on the workloads of its definition (`only` those, if any), without `skip`."""
    task = judge.task(definition["name"])
    subject = Subject(judge, definition, solution)
    try:
        for item in judge.workloads(definition, only):
            if (text_hash(solution), text_hash(item.workload)) not in skip:
                yield judge_workload(subject, item, task)
    finally:
        subject.retire()
