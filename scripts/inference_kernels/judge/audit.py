"""Audit packaged solutions: is the call complete, does the prepared launch give its bytes, what do both cost?"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inference_kernels.core.types import Definition
from inference_kernels.judge.bench import POISONS, Bench
from inference_kernels.judge.benchmark import benchmark
from inference_kernels.judge.checks import checked_call
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.types import JudgeRecord, RawSolution

COLUMNS = ["solution", "workload", "axes", "status", "prepare", "same bits", "call us", "launch us", "call / launch"]


def audit(judge: Judge, definition: Definition, solution: RawSolution, only: tuple[str, ...]) -> Iterator[JudgeRecord]:
    """Yield the benchmark's record of each workload, with an `audit` object."""
    for record in benchmark(judge, definition, solution, only, look=_look):
        found = record.setdefault("audit", {})
        if record["status"] in ("pass", "impossible_time"):  # all checks of the inputs passed
            found["inputs_unchanged"] = True
        yield record


@contextmanager
def _look(subject: Subject, bench: Bench, record: JudgeRecord) -> Iterator[None]:
    """Note style and module docstring before the checks, and compare launch and call after them."""
    text = bench.worker.ask("docstring", bench.limits.call)["text"]
    found = record["audit"] = subject.style | {"notes": text.strip()}
    yield
    if not subject.judge.options.validation_only:
        found["launch_equals_run"] = same_bits(bench)


def same_bits(bench: Bench) -> bool:
    """Tell whether the prepared launch gives the same bytes as the packaged call, on the same inputs."""
    results = []
    for mode in ("call", "launch"):
        bench.ready(0, mode, [], POISONS[0], fresh=False)
        checked_call(bench, mode)
        results.append(bench.output_bytes(0))
    return results[0] == results[1]


def table_row(record: JudgeRecord, row: dict[str, Any]) -> dict[str, Any]:
    """Widen the benchmark's row by what the audit found."""
    found, timing = record["audit"], record["timing"]
    same = found.get("launch_equals_run")
    ratio = timing["call"]["median_us"] / timing["launch"]["median_us"] if len(timing) == 2 else None
    return row | {
        "prepare": "yes" if found.get("has_prepare") else "no",
        "same bits": "-" if same is None else "yes" if same else "no",
        "call / launch": "-" if ratio is None else f"{ratio:.2f}",
    }
