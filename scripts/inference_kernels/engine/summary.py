"""Sum up a capture run: a summary for the command's end, and a document that stands for a run without its tensors.

Text and diffusion models have one of each, as different parts of the record tell their calls apart.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import pass_kind
from inference_kernels.capture.requests import RequestCase
from inference_kernels.capture.run import RunFolder
from inference_kernels.core.files import read_json
from inference_kernels.core.layout import REPOSITORY

if TYPE_CHECKING:
    from inference_kernels.core.replay import Replayed

FIGURES = ("elements", "mismatched", "max_abs_error", "relative_rms", "tolerance_used")


def text_summary(run: RunFolder, cases: dict[str, RequestCase]) -> dict[str, Any]:
    """Summarise calls and worst errors per definition, and the planned passes that were not captured."""
    rows: dict[str, dict[str, Any]] = {}
    for row in text_calls(run):
        fresh = {"calls": 0, "max_abs_error": 0.0, "max_relative_rms": 0.0}
        figures = rows.setdefault(row["definition"], fresh)
        figures["calls"] += 1
        for errors in row["errors"].values():
            figures["max_abs_error"] = max(figures["max_abs_error"], errors["max_abs_error"] or 0.0)
            figures["max_relative_rms"] = max(figures["max_relative_rms"], errors["relative_rms"] or 0.0)
    return _summary(run, rows, excluded=len(excluded(run)), missed=missed(run, cases))


def media_summary(run: RunFolder, media: str) -> dict[str, Any]:
    """Summarise calls per definition. media: "images" or "videos", which are counted too."""
    captured = dict(Counter(call["record"]["definition"] for call, _ in _calls(run)))
    return _summary(run, captured, **{media: sum(len(case["images"]) for case in run.manifest["cases"].values())})


def _summary(run: RunFolder, captured: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "run": "/".join(run.root.parts[-2:]),
        "complete": run.manifest["complete"],
        "captured": captured,
        "seen": run.operator_counts(),
        **more,
        "seconds": {name: case["seconds"] for name, case in run.manifest["cases"].items()},
    }


def _calls(run: RunFolder) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each captured call and its replay, {} if it was not replayed."""
    for path in run.calls():
        replay = run.root / "validation" / path.name
        yield read_json(path), read_json(replay) if replay.exists() else {}


def excluded(run: RunFolder) -> list[dict[str, Any]]:
    """Return the records of the calls excluded whole for near ties."""
    return [read_json(path) for path in sorted((run.root / "excluded").glob("*.json"))]


def missed(run: RunFolder, cases: dict[str, RequestCase]) -> list[str]:
    """Name the passes of finished cases that were to be kept and gave no call: "case, pass number, definition"."""
    records = [read_json(path)["record"] for path in run.calls()]
    records += excluded(run)
    found = set()
    for record in records:
        request, operation = record["request"], record["operation"]
        kind = pass_kind(operation["phase"], operation["batch"], len(request["prompt_tokens"]))
        found.add((request["case"], kind, operation["step"], record["definition"]))
    return [
        f"{name}, {kind} {step}, {definition}"
        for name in run.finished_cases
        for kind, wanted in cases[name].keep.items()
        for definition, steps in wanted.items()
        for step in steps
        if (name, kind, step, definition) not in found
    ]


def text_calls(run: RunFolder) -> list[dict[str, Any]]:
    """Return one entry per captured call: what it was, and its replay's figures if it was replayed."""
    rows = []
    for call, replay in _calls(run):
        record, operation = call["record"], call["record"]["operation"]
        where = {key: operation[key] for key in ("phase", "step", "batch", "layer", "call_path")}
        errors = {name: {key: figures[key] for key in FIGURES} for name, figures in replay.get("errors", {}).items()}
        rows.append(
            {
                "definition": record["definition"],
                "workload": record["workload"],
                "case": record["request"]["case"],
                **where,
                "axes": call["workload"]["axes"],
                "passed": replay.get("passed"),
                "errors": errors,
            }
        )
    return sorted(rows, key=lambda row: (row["definition"], row["case"], row["phase"], row["step"]))


def text_document(run: RunFolder, cases: dict[str, RequestCase]) -> dict[str, Any]:
    """Return everything about a run but its tensors."""
    settings = run.settings
    return {
        "kind": settings["kind"],
        "profile": settings["profile"],
        "class": settings["class"],
        "model": settings["model"],
        "engine": settings["engine"],
        "hardware": settings["hardware"],
        "complete": run.manifest["complete"],
        "cases": run.manifest["cases"],
        "missed": missed(run, cases),
        "calls": text_calls(run),
        "excluded": [
            {
                "definition": item["definition"],
                "case": item["request"]["case"],
                "reason": item["reason"],
                "rows": item["rows"],
                "largest_gap": item["largest_gap"],
            }
            for item in excluded(run)
        ],
    }


def media_document(run: RunFolder, media: str) -> dict[str, Any]:
    """Return everything about a validated run but its tensors: settings, shapes and replay errors of every call."""
    calls = []
    for call, replay in _calls(run):
        record = call["record"]
        calls.append(
            {
                "definition": record["definition"],
                "axes": call["workload"]["axes"],
                "case": record["request"]["case"],
                **{name: record["operation"][name] for name in ("call_path", "layer", "step", "output")},
                "adaptations": record["adaptations"],
                **{name: replay[name] for name in ("criterion", "errors", "passed")},
            }
        )
    settings = {name: run.settings[name] for name in ("class", "model", "engine", "hardware", "selection")}
    return media_summary(run, media) | settings | {"calls": calls}


def replay_calls(run: RunFolder, ties: tuple[str, ...], device: str, report: Callable[[str], None]) -> list["Replayed"]:
    """Replay every call; exclude whole those that differ by near ties only, and leave them out of the results.

    ties: definitions whose selection may differ by near ties.
    """
    from inference_kernels.capture.near_ties import exclude_near_tie
    from inference_kernels.capture.validate import validate_run

    results, total = [], len(run.calls())
    for number, result in enumerate(validate_run(run, REPOSITORY, device), 1):
        left_out = (
            result.status == "fail" and result.definition in ties and exclude_near_tie(run, REPOSITORY, result, device)
        )
        report(
            f"validated {number}/{total} {result.definition} {result.workload}: "
            f"{'excluded, near-tie' if left_out else result.status} {result.reason}"
        )
        if not left_out:
            results.append(result)
    return results
