"""Judge one solution on the workloads of its definition, alone on its GPU."""

import contextlib
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

from inference_kernels.core.tasks import Task
from inference_kernels.core.types import Definition
from inference_kernels.core.workloads import Available
from inference_kernels.judge.bench import Bench
from inference_kernels.judge.checks import finish, validate
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.record import counted, fill_record, meanwhile, new_record, reject, work_hashes
from inference_kernels.judge.timing import record_timing, time_modes, trial
from inference_kernels.judge.types import JudgeRecord, RawSolution, Work
from inference_kernels.judge.verdicts import Rejected

# What else is done around the checks and the timing of a workload: (solution, its bench, the record to add to).
Look = Callable[[Subject, Bench, JudgeRecord], AbstractContextManager[None]]


def judge_workload(subject: Subject, item: Available, task: Task, look: Look | None = None) -> JudgeRecord:
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
            with look(subject, bench, record) if look else contextlib.nullcontext():
                bench.load()
                validate(bench)
                if not judge.options.validation_only:
                    time_alone(bench, task)
            with meanwhile(judge.state) as after:
                finish(bench)
            record["clocks"]["after"] = after.result()
        except Rejected as error:
            reject(record, error)
            subject.retire()
    fill_record(record, bench, floor)
    return record


def time_alone(bench: Bench, task: Task) -> None:
    """Time both modes; of a launch that cannot be captured at least the eager calls, before it is Rejected."""
    iterations, warmup = task.timing["iters"], task.timing["warmup"]
    try:
        time_modes(bench, iterations, warmup, task.timing["trials"])
    except Rejected as error:
        if error.status == "not_capturable":
            bench.sheet.notes.append("eager call time only: the launch cannot be captured in a graph")
            with contextlib.suppress(Rejected):
                record_timing(bench, "call", trial(bench, "call", iterations, warmup), iterations)
        raise


def benchmark(
    judge: Judge,
    definition: Definition,
    solution: RawSolution,
    only: tuple[str, ...],
    skip: Collection[Work] = (),
    look: Look | None = None,
) -> Iterator[JudgeRecord]:
    """Yield the records of one solution on the workloads of its definition.

    only: UUIDs, all if empty; skip: of report.finished_work.
    """
    task = judge.task(definition["name"])
    subject = Subject(judge, definition, solution)
    try:
        for item in judge.workloads(definition, only):
            if not skip or frozenset(work_hashes(judge, definition, solution, item).items()) not in skip:
                yield judge_workload(subject, item, task, look)
    finally:
        subject.retire()
