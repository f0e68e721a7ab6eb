"""Reports: JSON lines of records, resuming one, tables from them, native Traces out of them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import json_line, parse_json
from inference_kernels.core.native import check_native
from inference_kernels.core.records import workload_line
from inference_kernels.core.types import Workload
from inference_kernels.judge.types import JudgeRecord, Work
from inference_kernels.judge.verdicts import STATUSES, CannotJudge

SAME_MACHINE = ("host", "gpu", "device", "driver", "packages", "timer", "cache_policy")
TRACE_STATUS = {
    "pass": "PASSED",
    "mismatch": "INCORRECT_NUMERICAL",
    "non_finite": "INCORRECT_NUMERICAL",
    "build_error": "COMPILE_ERROR",
    "timeout": "TIMEOUT",
}
COLUMNS = ["solution", "workload", "axes", "status", "launch us", "call us", "floor ratio"]


def finished_work(path: Path, environment: dict[str, Any]) -> tuple[set[Work], str]:
    """Read what a report that is resumed has finished, and a warning if its last line was torn; that line is removed.

    The last record of a solution and workload counts, as in summaries, if it passes. SchemaError for a damaged line;
    CannotJudge for a record of another machine: its times must not be mixed with this one's.
    """
    *whole, last = path.read_bytes().split(b"\n")
    records = [_report_record(line, f"{path}:{number}") for number, line in enumerate(whole, 1)]
    warning = ""
    if last:
        where = f"{path}:{len(records) + 1}"
        try:
            records.append(_report_record(last, where))
        except SchemaError:
            warning = f"{where}: dropped the last line, which a killed run left incomplete"
    latest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for number, record in enumerate(records, 1):
        _require_same_machine(record, environment, f"{path}:{number}")
        latest[record["definition"], record["solution"], record["workload"]] = record
    if last:
        _end_last_line(path, len(last) if warning else 0)
    return {frozenset(record["hashes"].items()) for record in latest.values() if record["status"] == "pass"}, warning


def _report_record(line: bytes, where: str) -> dict[str, Any]:
    """Parse a line of a report; SchemaError unless it holds what a resumed run reads of a record."""
    try:
        record = parse_json(line.decode(), where)
    except UnicodeDecodeError as error:
        raise _damaged(str(error), where) from error
    if not isinstance(record, dict):
        raise _damaged(type(record).__name__, where)
    for key in ("definition", "solution", "workload", "status"):
        if not isinstance(record.get(key), str):
            raise _damaged(f"no text as {key}", where)
    if record["status"] not in STATUSES:
        raise _damaged(f"status {record['status'][:40]!r}", where)
    hashes = record.get("hashes")
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise _damaged("no hashes", where)
    if not isinstance(record.get("environment"), dict):
        raise _damaged("no environment", where)
    return record


def _damaged(found: str, where: str) -> SchemaError:
    remedy = "remove or repair the line, or start another report"
    return SchemaError(expected="a record of benchmark_solutions.py", found=found, where=where, remedy=remedy)


def _require_same_machine(record: dict[str, Any], environment: dict[str, Any], where: str) -> None:
    for key in SAME_MACHINE:
        if record["environment"].get(key) != environment.get(key):
            raise CannotJudge(
                expected=f"a report of this machine ({key} {environment.get(key)!r})",
                found=f"{record['environment'].get(key)!r}",
                where=where,
                remedy="start another report",
            )


def _end_last_line(path: Path, torn: int) -> None:
    """Remove the `torn` bytes at a report's end; if there are none, give its last line the newline that it lacks."""
    with open(path, "r+b") as stream:
        stream.seek(-torn, os.SEEK_END)
        stream.truncate()
        stream.write(b"" if torn else b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def start_report(path: Path, resume: bool) -> None:
    """Make the report's folder; CannotJudge if the report exists and is not to be resumed, or is no file."""
    if path.exists() and not path.is_file():
        raise CannotJudge(
            expected="a file", found="a folder, pipe or device", where=str(path), remedy="choose another name"
        )
    if path.exists() and not resume:
        raise CannotJudge(
            expected="a new report",
            found="an existing file",
            where=str(path),
            remedy="choose another name, or --resume it",
        )
    path.parent.mkdir(parents=True, exist_ok=True)


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line and flush it to the disk: a killed run keeps what it has finished."""
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json_line(record) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def table_row(record: JudgeRecord) -> dict[str, Any]:
    timing = record["timing"]
    launch, call = (timing[mode]["median_us"] if mode in timing else None for mode in ("launch", "call"))
    ratio = timing[record["timed"]].get("floor_ratio") if record["timed"] in timing else None
    return {
        "solution": record["solution"],
        "workload": record["workload"][:8],
        "axes": ", ".join(f"{name}={size}" for name, size in record["axes"].items()),
        "status": record["status"],
        "launch us": number(launch),
        "call us": number(call),
        "floor ratio": number(ratio),
    }


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def troubles(records: list[JudgeRecord]) -> list[str]:
    return [
        f"{record['status']} {record['solution']} {record['workload']}: {record['detail']}"
        for record in records
        if record["status"] != "pass"
    ]


def counts(records: list[JudgeRecord]) -> dict[str, int]:
    kinds = [STATUSES[record["status"]][0] for record in records]
    return {"passed": kinds.count("pass"), "rejected": kinds.count("reject"), "not_judged": kinds.count("void")}


def trace_of(record: JudgeRecord, workload: Workload) -> dict[str, Any] | None:
    """Convert the record to a native Trace; None for a workload that was not judged."""
    if STATUSES[record["status"]][0] == "void":
        return None
    status = TRACE_STATUS.get(record["status"], "RUNTIME_ERROR")
    environment = record["environment"]
    evaluation: dict[str, Any] = {
        "status": status,
        "timestamp": record["when"],
        "log": record["detail"],
        "environment": {"hardware": environment["device"] or "cpu", "libs": environment["packages"]},
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        worst = [item["max_abs_error"] for item in record["comparisons"].values() if item["max_abs_error"] is not None]
        evaluation["correctness"] = {"max_absolute_error": max(worst, default=0.0), "max_relative_error": 0.0}
    if status == "PASSED":
        timed = record["timing"].get(record["timed"])
        evaluation["performance"] = {"latency_ms": timed["median_us"] / 1e3 if timed else 0.0}
    trace = {**workload_line(record["definition"], workload), "solution": record["solution"], "evaluation": evaluation}
    check_native("trace", trace, record["workload"])
    return trace


def write_trace(folder: Path, op_type: str, trace: dict[str, Any]) -> None:
    """Append to `<folder>/<op_type>/<definition>.jsonl`, where the native loader looks for traces."""
    path = folder / op_type / f"{trace['definition']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    append(path, trace)
