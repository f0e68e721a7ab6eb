"""docs/baselines.md and the summary it shows: one row per definition, solution and kind of data.

results/summaries/h200_baselines.jsonl holds the rows of the runs that documents cite; a row gives the device and the
software it was measured with, and the verdict of every workload.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import definition_files, read_definition
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_jsonl
from inference_kernels.judge.stats import SPREAD_WARNING, geometric_mean
from inference_kernels.pages.markdown import table

SUMMARY = "results/summaries/h200_baselines.jsonl"
PAGE = "docs/baselines.md"
PACKAGES = ("torch", "triton", "sglang")
DETAIL = 200
FIGURE = (int, float, type(None))
# (definition, solution, kind of data) -> workload -> its last record
Groups = dict[tuple[str, str, str], dict[str, dict[str, Any]]]
# All keys of a row, with the types of their values.
ROW = {
    "definition": (str,),
    "solution": (str,),
    "data": (str,),
    "class": (list,),
    "device": (str,),
    "peaks": (dict,),
    "packages": (dict,),
    "timed": (str,),
    "passed": (int,),
    "workloads": (int,),
    "statuses": (dict,),
    "geomean_us": FIGURE,
    "floor_ratio": FIGURE,
    "speed_vs_sglang": FIGURE,
    "worst_error": FIGURE,
    "unsteady": (int,),
    "cases": (list,),
}


def summarise(reports: Iterable[tuple[str, Path]]) -> list[dict[str, Any]]:
    """Summarise benchmark reports, given as (label of the data, file or folder of files), in rows.

    The last record of a workload counts. SchemaError for a folder without reports.
    """
    groups: Groups = {}
    for label, path in reports:
        for file in _files(path):
            for _, record in read_jsonl(file):
                key = (record["definition"], record["solution"], label)
                groups.setdefault(key, {})[record["workload"]] = record
    return [_row(key, list(records.values()), _engine_times(groups, key)) for key, records in sorted(groups.items())]


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise SchemaError(
            expected="reports (*.jsonl)",
            found="none",
            where=str(path),
            remedy="write them with scripts/benchmark_solutions.py",
        )
    return files


def _engine_times(groups: Groups, key: tuple[str, str, str]) -> dict[str, float]:
    """Map workloads to the microseconds of the SGLang wrapper on the same data, where it passed."""
    definition, _, label = key
    records = groups.get((definition, f"sglang_{definition}", label), {})
    return {uuid: time for uuid, record in records.items() if (time := _time(record)) is not None}


def _time(record: dict[str, Any]) -> float | None:
    timing = record["timing"].get(record["timed"])
    return timing["median_us"] if timing and record["status"] == "pass" else None


def _unsteady(record: dict[str, Any]) -> bool:
    """Tell whether the samples behind the median spread so widely that the judge warns."""
    timing = record["timing"].get(record["timed"])
    return record["status"] == "pass" and bool(timing) and timing["p90_us"] > SPREAD_WARNING * timing["p10_us"]


def _row(key: tuple[str, str, str], records: list[dict[str, Any]], engine: dict[str, float]) -> dict[str, Any]:
    times = {record["workload"]: time for record in records if (time := _time(record)) is not None}
    ratios = [
        times[record["workload"]] / record["floor"]["microseconds"]
        for record in records
        if record["workload"] in times and record["floor"]["microseconds"]
    ]
    speeds = [engine[uuid] / time for uuid, time in times.items() if uuid in engine]
    used = [
        item["tolerance_used"]
        for record in records
        for item in record["comparisons"].values()
        if item["tolerance_used"] is not None and record["status"] == "pass"
    ]
    environment, statuses = records[-1]["environment"], [record["status"] for record in records]
    return {
        "definition": key[0],
        "solution": key[1],
        "data": key[2],
        "class": sorted({record["class"] for record in records}),
        "device": environment["device"],
        "peaks": environment["peaks"],
        "packages": {name: environment["packages"].get(name) for name in PACKAGES} | {"torch": environment["torch"]},
        "timed": records[-1]["timed"],
        "passed": statuses.count("pass"),
        "workloads": len(records),
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "geomean_us": _mean(list(times.values())),
        "floor_ratio": _mean(ratios),
        "speed_vs_sglang": _mean(speeds),
        "worst_error": max(used, default=None),
        "unsteady": sum(map(_unsteady, records)),
        "cases": [_case(record) for record in records],
    }


def _mean(values: list[float]) -> float | None:
    return round(geometric_mean(values), 4) if values else None


def _case(record: dict[str, Any]) -> dict[str, Any]:
    time, floor, timing = _time(record), record["floor"] or {}, record["timing"].get(record["timed"]) or {}
    more = {key: round(timing[key], 3) for key in ("p10_us", "p90_us") if timing}
    if record["timed"] != "launch" and "launch" in record["timing"]:
        more["launch_us"] = round(record["timing"]["launch"]["median_us"], 3)
    if "overhead" in record.get("seconds", {}):
        more["overhead_s"] = record["seconds"]["overhead"]
    return {
        "axes": record["axes"],
        "status": record["status"],
        "us": time and round(time, 3),
        **more,
        "floor_us": floor.get("microseconds"),
        "bytes": floor.get("bytes"),
        "operations": floor.get("operations"),
        "detail": record["detail"][:DETAIL],
    }


def read_rows(root: Path) -> list[dict[str, Any]]:
    """Read the rows of the committed summary, none without a summary; SchemaError for a malformed row."""
    path = root / SUMMARY
    if not path.exists():
        return []
    rows = []
    for number, row in read_jsonl(path):
        faults = [f"no {key}" for key in ROW if key not in row] + [
            f"unknown key {key}" for key in row if key not in ROW
        ]
        faults = faults or [f"{key} = {row[key]!r}" for key, kinds in ROW.items() if type(row[key]) not in kinds]
        if faults:
            raise SchemaError(
                expected=f"a result with {', '.join(ROW)}",
                found=faults[0],
                where=f"{path}:{number}",
                remedy="write it with scripts/summarise_results.py",
            )
        rows.append(row)
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row's cells: solution, data, passed, time, ratio to the floor, speed against the engine, worst error."""
    failed = ", ".join(f"{count} {status}" for status, count in row["statuses"].items() if status != "pass")
    passed = f"{row['passed']} of {row['workloads']}" + (f" ({failed})" if failed else "")
    return [
        f"`{row['solution']}`",
        row["data"],
        passed,
        _geomean(row),
        _number(row["floor_ratio"]),
        _number(row["speed_vs_sglang"]),
        "-" if row["worst_error"] is None else f"{row['worst_error']:.0%}",
    ]


def _geomean(row: dict[str, Any]) -> str:
    return _number(row["geomean_us"]) + (" ~" if row["unsteady"] else "")


def _number(value: float | None) -> str:
    """Format a number with three digits, large numbers whole."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


DATA = ("starter", "large")
OVERVIEW = ["definition", "solutions", "calls passed"] + [
    title for data in DATA for title in (f"fastest, {data}", "us", "x floor")
]
HEADER = ["solution", "data", "passed", "time us", "x floor", "x SGLang", "tolerance used"]
INTRODUCTION = """\
A task times either a prepared launch as a CUDA graph, from a cold L2 and without the timer's own overhead, or the
whole eager call (gated delta rule). Times are geometric means over the workloads that pass. `x floor` is the time over
the least time that bytes and operations need at the measured peaks of the device (of one product and one copy: another
shape can run slightly above them); `x SGLang` is the speed relative to the engine's own kernel on the same workloads.
`starter` are the committed workloads, which are deliberately small: latency, not the GPU, bounds most of their calls.
`large` are captures of the same seeded models at larger sizes, made and judged on the GPU host and not committed.
Tolerance used: the worst element's error as a share of its bound. A solution without a row was not judged on this
device; a row describes the solution as it was then.

`~`: on at least one workload the slowest tenth of the calls took more than 1.5 times as long as the fastest tenth.
Either something disturbed them and the time can be too long, or the time depends on the values, which are rearranged
before each call: Triton's index selection scores near ties twice. The summary has both quantiles of every workload.
Most of these are eager calls, whose pace the host sets. `large` rows are older than `starter` rows: since then the
device waits 0.2 ms before each timed launch, in case the host is late.

[starter.md](starter.md) has the commands."""


def overview(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Write a row per definition: solutions, passed calls, and the fastest solution of each kind of data."""
    lines = []
    for name in sorted({row["definition"] for row in rows}):
        own = [row for row in rows if row["definition"] == name]
        solutions = {row["solution"] for row in own}
        passed, judged = (sum(row[key] for row in own) for key in ("passed", "workloads"))
        lines.append(
            [
                f"`{name}`",
                str(len(solutions)),
                f"{passed} of {judged}",
                *(cell for data in DATA for cell in _fastest(name, own, data)),
            ]
        )
    return lines


def _fastest(name: str, rows: list[dict[str, Any]], data: str) -> tuple[str, str, str]:
    """Find the fastest solution that passed all workloads of this kind, its time and its ratio to the floor."""
    complete = [row for row in rows if row["data"] == data and row["passed"] == row["workloads"]]
    if not complete:
        return "-", "-", "-"
    best = min(complete, key=lambda row: row["geomean_us"])
    return (f"`{best['solution'].removesuffix('_' + name)}`", _geomean(best), _number(best["floor_ratio"]))


def page(root: Path, rows: list[dict[str, Any]]) -> str:
    """Write docs/baselines.md."""
    devices = sorted({(row["device"], row["packages"]["torch"]) for row in rows})
    where = "; ".join(f"{device} with torch {version}" for device, version in devices)
    parts = [
        "# Baselines",
        f"Generated by `python scripts/build_docs.py` from [the summary](../{SUMMARY}). Measured on: {where}.",
        INTRODUCTION,
    ]
    for path in definition_files(root):
        name = read_definition(path)["name"]
        own = [row for row in rows if row["definition"] == name]
        if own:
            parts += [f"## {name}", table(HEADER, [cells(row) for row in own]), *_failures(own)]
    return "\n\n".join(parts) + "\n"


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    """Write a line per reason why a solution was not accepted."""
    found = {
        (row["solution"], case["status"], " ".join(case["detail"].split()))
        for row in rows
        for case in row["cases"]
        if case["status"] != "pass"
    }
    return ["\n".join(f"- `{name}`: {status}: {detail}" for name, status, detail in sorted(found))] if found else []
