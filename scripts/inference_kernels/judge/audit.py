"""Audit of packaged solutions.

Is the call complete and clean, does the prepared launch agree with it, what it costs.
"""

import secrets
from collections.abc import Iterator
from typing import Any

from inference_kernels.core.tasks import Task
from inference_kernels.core.workloads import Available
from inference_kernels.judge.bench import POISONS, Bench
from inference_kernels.judge.benchmark import time_alone
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.record import counted, fill_record, new_record
from inference_kernels.judge.verdicts import Rejected

COLUMNS = ["solution", "workload", "axes", "status", "prepare", "same bits", "call us", "launch us", "call / launch"]


def audit(judge: Judge, definition: dict, solution: dict, only: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One record a workload, as the benchmark writes them, with an `audit` object."""
    task = judge.task(definition["name"])
    subject = Subject(judge, definition, solution)
    try:
        for item in judge.workloads(definition, only):
            yield _audit_workload(subject, item, task)
    finally:
        subject.retire()


def _audit_workload(subject: Subject, item: Available, task: Task) -> dict[str, Any]:
    judge, seed = subject.judge, secrets.randbits(48)
    record, bench, floor = new_record(subject, item, task, seed), None, None
    record["audit"] = {}
    with counted(record["seconds"], "total"):
        try:
            with counted(record["seconds"], "load"):
                case = judge.load(subject.definition, item, task, seed)
            floor = judge.floor(case)
            with counted(record["seconds"], "start"):
                bench = subject.bench(case)
            text = bench.worker.ask("docstring", judge.options.limits.call)["text"]
            record["audit"] |= subject.style | {"notes": text.strip()}
            bench.load()
            bench.validate()
            if not judge.options.validation_only:
                time_alone(bench, task)
                record["audit"]["launch_equals_run"] = same_bits(bench)
            bench.finish()
            record["audit"]["inputs_unchanged"] = True
        except Rejected as error:
            record |= {"status": error.status, "detail": error.detail}
            subject.retire()
    fill_record(record, bench, floor)
    return record


def same_bits(bench: Bench) -> bool:
    """Does the prepared launch give the same bytes as the packaged call, on the same inputs?"""
    results = []
    for mode in ("call", "launch"):
        bench.ready(0, mode, [], POISONS[0], fresh=False)
        bench.go(mode, 1)
        results.append(bench.output_bytes(0))
    return results[0] == results[1]


def table_row(record: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The benchmark's row, widened by what the audit found."""
    found, timing = record["audit"], record["timing"]
    same = found.get("launch_equals_run")
    ratio = timing["call"]["median_us"] / timing["launch"]["median_us"] if len(timing) == 2 else None
    return row | {
        "prepare": "yes" if found.get("has_prepare") else "no",
        "same bits": "-" if same is None else "yes" if same else "no",
        "call / launch": "-" if ratio is None else f"{ratio:.2f}",
    }
