"""What a run of language-model captures holds, in figures: for the command's end, and without tensors as a
file.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import pass_kind
from inference_kernels.capture.requests import Case
from inference_kernels.capture.run import RunFolder
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import read_json
from inference_kernels.core.layout import REPOSITORY

if TYPE_CHECKING:
    from inference_kernels.core.replay import Replayed

FIGURES = ("elements", "mismatched", "max_abs_error", "relative_rms", "tolerance_used")


def summary(run: RunFolder, cases: dict[str, Case]) -> dict[str, Any]:
    """Calls and worst errors by definition, and the planned passes that were not captured."""
    rows: dict[str, dict[str, Any]] = {}
    for row in calls(run):
        fresh = {"calls": 0, "max_abs_error": 0.0, "max_relative_rms": 0.0}
        figures = rows.setdefault(row["definition"], fresh)
        figures["calls"] += 1
        for errors in row["errors"].values():
            figures["max_abs_error"] = max(figures["max_abs_error"], errors["max_abs_error"] or 0.0)
            figures["max_relative_rms"] = max(figures["max_relative_rms"], errors["relative_rms"] or 0.0)
    return {
        "run": "/".join(run.root.parts[-2:]),
        "complete": run.manifest["complete"],
        "captured": rows,
        "seen": run.operator_counts(),
        "excluded": len(excluded(run)),
        "missed": missed(run, cases),
        "seconds": {name: case["seconds"] for name, case in run.manifest["cases"].items()},
    }


def excluded(run: RunFolder) -> list[dict[str, Any]]:
    """Receipts of the calls left out whole for ties."""
    return [read_json(path) for path in sorted((run.root / "excluded").glob("*.json"))]


def missed(run: RunFolder, cases: dict[str, Case]) -> list[str]:
    """Passes to keep of finished cases that no call was captured of: "case, pass number, definition"."""
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


def calls(run: RunFolder) -> list[dict[str, Any]]:
    """One entry a captured call: what it was, and its replay's figures if it was replayed."""
    rows = []
    for path in run.calls():
        call, replay = read_json(path), run.root / "validation" / path.name
        record, operation = call["record"], call["record"]["operation"]
        replayed = read_json(replay) if replay.exists() else {}
        where = {key: operation[key] for key in ("phase", "step", "batch", "layer", "call_path")}
        errors = {name: {key: figures[key] for key in FIGURES} for name, figures in replayed.get("errors", {}).items()}
        rows.append(
            {
                "definition": record["definition"],
                "workload": record["workload"],
                "case": record["request"]["case"],
                **where,
                "axes": call["workload"]["axes"],
                "passed": replayed.get("passed"),
                "errors": errors,
            }
        )
    return sorted(rows, key=lambda row: (row["definition"], row["case"], row["phase"], row["step"]))


def document(run: RunFolder, cases: dict[str, Case]) -> dict[str, Any]:
    """Everything about a run that travels without its tensors."""
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
        "calls": calls(run),
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


def replay_calls(run: RunFolder, ties: tuple[str, ...], device: str, report: Callable[[str], None]) -> list["Replayed"]:
    """Replay every call; those that differ by near-ties only are excluded whole and not among the results.

    ties: definitions whose selection may differ by near-ties.
    """
    from inference_kernels.capture.near_ties import exclude_near_tie
    from inference_kernels.capture.validate import validate_run

    results, total = [], len(run.calls())
    for number, result in enumerate(validate_run(run, REPOSITORY, device), 1):
        excluded = (
            result.status == "fail" and result.definition in ties and exclude_near_tie(run, REPOSITORY, result, device)
        )
        report(
            f"validated {number}/{total} {result.definition} {result.workload}: "
            f"{'excluded, near-tie' if excluded else result.status} {result.reason}"
        )
        if not excluded:
            results.append(result)
    return results


FLUSH_ATTEMPTS = 20


def generate(engine: Any, prompts: list[list[int]], new_tokens: list[int]) -> list[dict[str, Any]]:
    """Greedy tokens of all prompts, submitted together in this order. new_tokens: for each prompt."""
    sampling = [{"temperature": 0, "max_new_tokens": count, "ignore_eos": True} for count in new_tokens]
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    return answers if isinstance(answers, list) else [answers]


def flush(engine: Any, wait: Callable[[float], None] = time.sleep) -> None:
    """Empty the caches; the engine refuses while it still works on something."""
    for _ in range(FLUSH_ATTEMPTS):
        answer = engine.flush_cache()
        if answer.success:
            return
        wait(0.5)
    raise CaptureError(
        expected="an idle engine whose cache can be flushed",
        found=answer.message or "a refusal",
        where="flush_cache",
        remedy="send the engine no requests of your own",
    )


def check_answers(
    name: str,
    prompts: list[list[int]],
    answers: list[dict],
    new_tokens: list[int],
    cached: list[tuple[int, int]],
    page: int = 1,
) -> dict[str, list[int]]:
    """Token counts of all requests; CaptureError if one of them is not as planned.

    cached: for each request, smallest and largest number of prompt tokens from the cache; whole pages.
    """
    found = {
        key: [int(answer["meta_info"][key]) for answer in answers]
        for key in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    pages = f" in pages of {page}" if page > 1 else ""
    hits = len(answers) == len(cached) and all(
        low <= count <= high and count % page == 0 for count, (low, high) in zip(found["cached_tokens"], cached)
    )
    for key, expected, holds in (
        ("prompt_tokens", [len(prompt) for prompt in prompts], None),
        ("completion_tokens", new_tokens, None),
        ("cached_tokens", ", ".join(f"{low} to {high}" for low, high in cached) + pages, hits),
    ):
        if not (found[key] == expected if holds is None else holds):
            raise CaptureError(
                expected=f"{key} {expected}",
                found=f"{found[key]}",
                where=name,
                remedy="see the engine's log: a request was clipped, or the cache missed",
            )
    return found
