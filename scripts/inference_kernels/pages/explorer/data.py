"""The explorer's data as one JSON value. No tensor file is opened.

Parts of records that many workloads share (model, engine, hardware, request, adaptations, criterion) are in
`pool` once, and the workloads refer to them by number.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import definition_files, read_definition
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import canonical_json, read_object
from inference_kernels.core.records import CLASSES, PUBLISHED_TARGET, captures_by_definition, read_workloads
from inference_kernels.core.schema import native_errors
from inference_kernels.core.solutions import read_solution, solution_files
from inference_kernels.core.tasks import read_task, task_path
from inference_kernels.core.types import CaptureRecord, Definition, Workload
from inference_kernels.pages.baselines import SUMMARY, read_rows
from inference_kernels.pages.explorer.code import highlighted, named_figures, shapes_image
from inference_kernels.pages.figures.data import histogram, summary

REMEDY = "run: python scripts/check_workload_inputs.py"
CONTEST_TARGET = 154
# The keys of a measured baseline that the page shows.
SHOWN = (
    "definition",
    "solution",
    "data",
    "passed",
    "workloads",
    "geomean_us",
    "floor_ratio",
    "speed_vs_sglang",
    "worst_error",
    "unsteady",
)
SHARED = ("model", "engine", "hardware", "request", "adaptations")
# The architectures of a solution for `cuda`, and the order of all.
GPU_ARCHITECTURES = ("sm_90", "sm_100")
ORDER = ("cpu", *GPU_ARCHITECTURES)


class Pool:
    """Values that occur often, each stored once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        """Look up the position of `value` in `values`; a new value is added."""
        place = self.numbers.setdefault(canonical_json(value), len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place


def explorer_data(root: Path) -> dict[str, Any]:
    """Collect all data; SchemaError for the first malformed definition, task, workload, record, solution or result."""
    records = captures_by_definition(root)
    pool = Pool()
    definitions, workloads = [], []
    for path in definition_files(root):
        definition = read_definition(path)
        _require_sound("definition", definition, path)
        mine = records.pop(definition["name"], [])
        calls = read_workloads(root, definition)
        definitions.append(_definition(root, definition, calls, mine))
        workloads += _workloads(calls, mine, pool)
    if records:
        raise SchemaError(
            expected="records of known definitions",
            found=min(records),
            where=str(root / "captures.jsonl"),
            remedy=REMEDY,
        )
    names = {definition["name"] for definition in definitions}
    return {
        "classes": list(CLASSES),
        "targets": {"published": PUBLISHED_TARGET, "contest": CONTEST_TARGET},
        "architectures": list(ORDER),
        "definitions": definitions,
        "solutions": solutions(root, names),
        "results": results(root, names),
        "figures": named_figures(root),
        "pool": pool.values,
        "workloads": workloads,
    }


def _require_sound(kind: str, value: Any, path: Path) -> None:
    for error in native_errors(kind, value, str(path)):
        raise error


def _definition(
    root: Path, definition: Definition, calls: list[Workload], records: list[CaptureRecord]
) -> dict[str, Any]:
    """Describe a definition, with its highlighted reference, its task and its histogram."""
    name, op_type = definition["name"], definition["op_type"]
    read_task(root, name)
    kept = {key: definition.get(key) or [] for key in ("description", "tags", "constraints")}
    return kept | {
        "name": name,
        "op_type": op_type,
        "axes": _pairs(definition["axes"]),
        "inputs": _pairs(definition["inputs"]),
        "outputs": _pairs(definition["outputs"]),
        "reference": highlighted(f"definitions/{op_type}/{name}.py", definition["reference"]),
        "task": read_object(task_path(root, name)),
        "shapes": shapes_image(root, name),
        "summary": summary(histogram(definition, calls, records)),
    }


def _pairs(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Turn a group into a list: JavaScript objects reorder names that look like numbers."""
    return [{"name": name} | item for name, item in group.items()]


def _workloads(calls: list[Workload], records: list[CaptureRecord], pool: Pool) -> list[dict[str, Any]]:
    """Describe each workload: its axes and inputs, and its record with shared parts by number."""
    by_uuid = {record["workload"]: record for record in records}
    rows = [_workload(call, by_uuid.pop(call["uuid"]), pool) for call in calls]
    if by_uuid:
        raise SchemaError(expected="a workload for each record", found="none", where=min(by_uuid), remedy=REMEDY)
    return rows


def _workload(call: Workload, record: CaptureRecord, pool: Pool) -> dict[str, Any]:
    fields: dict[str, Any] = {**record, "axes": call["axes"], "inputs": call["inputs"]}
    fields |= {key: pool.number(fields[key]) for key in SHARED}
    return fields | {"replay": {**record["replay"], "criterion": pool.number(record["replay"]["criterion"])}}


def solutions(root: Path, definitions: set[str]) -> list[dict[str, Any]]:
    """Describe every solution, with its highlighted sources and the architectures it is written for."""
    rows = []
    for path in solution_files(root):
        solution = read_solution(path)
        _require_sound("solution", solution, path)
        if solution["definition"] not in definitions:
            raise SchemaError(
                expected="the solution of a known definition",
                found=solution["definition"],
                where=str(path),
                remedy="correct `definition`",
            )
        sources = [highlighted(item["path"], item["content"]) for item in solution["sources"]]
        shown = {key: solution.get(key) for key in ("name", "definition", "author", "description", "spec")}
        targets = solution["spec"]["target_hardware"]
        rows.append(shown | {"architectures": architectures(targets), "sources": sources})
    return rows


def architectures(targets: list[str]) -> list[str]:
    """Expand `cuda` in `target_hardware`, and list each architecture once, known ones first."""
    names = {
        name for target in map(str.lower, targets) for name in (GPU_ARCHITECTURES if target == "cuda" else (target,))
    }
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def results(root: Path, definitions: set[str]) -> list[dict[str, Any]]:
    """Read the measured baselines, reduced to SHOWN; none without a summary."""
    rows = read_rows(root)
    for row in rows:
        if row["definition"] not in definitions:
            raise SchemaError(
                expected="the result of a known definition",
                found=row["definition"],
                where=str(root / SUMMARY),
                remedy="measure the baselines again, or remove the line",
            )
    return [{key: row[key] for key in SHOWN} for row in rows]
