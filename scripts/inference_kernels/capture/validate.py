"""Validate a capture run before it may be imported: compare whole tensors of every call with the reference."""

from collections.abc import Iterator
from pathlib import Path

from inference_kernels.capture.run import RunFolder
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.errors import CaptureError, ReplayError
from inference_kernels.core.files import read_json, write_json
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.replay import Replayed, replay_call
from inference_kernels.core.tasks import read_task
from inference_kernels.seeded.materialize import recipe_digest
from inference_kernels.seeded.recipes import recipe_from_json


def validate_run(run: RunFolder, repository: Path, device: str) -> Iterator[Replayed]:
    """Replay each call of `run`, store its figures under validation/, and yield the result.

    CaptureError if an input is not what its recipe generates. The caller raises on failures (`require_passed`)
    and completes the run.
    """
    verified: set[str] = set()
    for path in run.calls():
        call = read_json(path)
        workload, record = call["workload"], call["record"]
        definition = load_definition(repository, record["definition"])
        task = read_task(repository, record["definition"])
        for name, recipe in record.get("generated", {}).items():
            text = workload["inputs"][name]["path"]
            if text not in verified:
                _require_recipe(run.root, text, recipe, workload["uuid"])
                verified.add(text)
        try:
            comparisons = replay_call(definition, workload, record, task, lambda text: run.root / text, device)
        except ReplayError as error:
            yield Replayed(definition["name"], workload["uuid"], record["class"], "error", error.line())
            continue
        wrong = [f"{name}: {result.describe()}" for name, result in comparisons.items() if not result.passed]
        result = Replayed(
            definition["name"],
            workload["uuid"],
            record["class"],
            "fail" if wrong else "pass",
            "; ".join(wrong),
            comparisons,
        )
        write_json(run.root / "validation" / path.name, replay_summary(result, task.tolerance.__dict__, device))
        yield result


def replay_summary(result: Replayed, criterion: dict, device: str) -> dict:
    """Return the `replay` field of a capture record."""
    import torch

    return {
        "criterion": criterion,
        "device": device,
        "torch": torch.__version__,
        "errors": result.errors,
        "passed": result.status == "pass",
    }


def require_passed(results: list[Replayed], where: str) -> None:
    """CaptureError if a call is outside its tolerance; it names the first one and their number."""
    failed = [result for result in results if result.status != "pass"]
    if failed:
        first = failed[0]
        raise CaptureError(
            expected=f"{len(results)} calls within their task's tolerance",
            found=f"{len(failed)} outside; {first.definition} {first.workload}: {first.reason}",
            where=where,
            remedy="find the cause; such a run cannot be imported",
        )


def _require_recipe(root: Path, text: str, recipe: dict, uuid: str) -> None:
    """CaptureError unless the recipe gives the captured file, byte for byte."""
    if recipe_digest(recipe_from_json(recipe)) != sha256_file(root / text):
        raise CaptureError(
            expected=f"the tensor that recipe {recipe['tensor']} generates",
            found="other bytes",
            where=f"{uuid}: {text}",
            remedy="the engine changed the weight: do not record it as generated",
        )
