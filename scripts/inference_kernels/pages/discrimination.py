"""Discrimination results as table rows, lines and counts, and the committed summary that the pages show."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inference_kernels.check.discrimination import Measured, WrongAnswer, floor_share
from inference_kernels.core.files import read_json, write_json

SUMMARY = "results/summaries/discrimination.json"
COLUMNS = ["definition", "trick", "workloads", "told apart", "largest share", "passing alone"]


def rows(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """Write a row per definition and trick.

    largest share: of matching elements, over the workloads, in the output where fewest match.
    passing alone: outputs that would pass in some workload if only they were judged.
    """
    return [
        {
            "definition": item.definition,
            "trick": trick,
            "workloads": len(trials),
            "told apart": sum(trial.told_apart for trial in trials),
            "largest share": largest_share(trials),
            "passing alone": ", ".join(_trick(trick, trials)["passing_alone"]),
        }
        for item in measured
        for trick, trials in by_trick(item).items()
    ]


def by_trick(measured: Measured) -> dict[str, list[WrongAnswer]]:
    groups: dict[str, list[WrongAnswer]] = {}
    for trial in measured.trials:
        groups.setdefault(trial.trick, []).append(trial)
    return groups


def largest_share(trials: Iterable[WrongAnswer]) -> str:
    shares = [trial.share for trial in trials if trial.share is not None]
    return f"{floor_share(max(shares)):.3f}" if shares else "-"


def troubles(measured: Iterable[Measured]) -> list[str]:
    """Write the lines about answers not told apart, skipped workloads and errors."""
    lines = []
    for item in measured:
        for trial in item.trials:
            if not trial.told_apart:
                shares = ", ".join(f"{name} {floor_share(one.share)}" for name, one in trial.outputs.items())
                note = f" ({trial.note})" if trial.note else ""
                lines.append(
                    f"not told apart {item.definition} {trial.workload} {trial.trick}{note}: "
                    f"share that matches {shares}"
                )
        lines += [f"skipped {item.definition} {uuid}: {reason}" for uuid, reason in item.skipped.items()]
        lines += [f"error {item.definition}: {error}" for error in item.errors]
    return lines


def counts(measured: list[Measured]) -> dict[str, int]:
    trials = [trial for item in measured for trial in item.trials]
    return {
        "definitions": sum(bool(item.trials) for item in measured),
        "workloads": sum(len(item.workloads) for item in measured),
        "trials": len(trials),
        "not_told_apart": sum(not trial.told_apart for trial in trials),
        "skipped": sum(len(item.skipped) for item in measured),
        "errors": sum(len(item.errors) for item in measured),
    }


def entry(measured: Measured) -> dict[str, Any]:
    """Reduce one definition's trials to its entry of the summary; shares are rounded down, so that devices agree."""
    classes = list(measured.workloads.values())
    return {
        "workloads": {name: classes.count(name) for name in sorted(set(classes))},
        "skipped": len(measured.skipped),
        "tricks": [_trick(trick, trials) for trick, trials in by_trick(measured).items()],
        "not_told_apart": [_missed(trial) for trial in measured.trials if not trial.told_apart],
    }


def _missed(trial: WrongAnswer) -> dict[str, Any]:
    return {
        "workload": trial.workload,
        "trick": trial.trick,
        "note": trial.note,
        "share": {output: floor_share(item.share) for output, item in trial.outputs.items()},
    }


def _trick(name: str, trials: list[WrongAnswer]) -> dict[str, Any]:
    outputs = {output for trial in trials for output in trial.outputs}
    judged = {
        output: [trial.outputs[output] for trial in trials if output in trial.outputs] for output in sorted(outputs)
    }
    shares = {
        output: max((item.share for item in items if item.share is not None), default=None)
        for output, items in judged.items()
    }
    passing = [output for output, items in judged.items() if any(item.passed for item in items)]
    return {
        "trick": name,
        "workloads": len(trials),
        "told_apart": sum(trial.told_apart for trial in trials),
        "share": {output: floor_share(share) for output, share in shares.items()},
        "passing_alone": passing,
    }


def read_summary(root: Path) -> dict[str, Any]:
    """Read the summary's entries by definition; none if nothing has been measured."""
    path = root / SUMMARY
    return read_json(path) if path.exists() else {}


def write_summary(root: Path, measured: list[Measured], known: dict[str, bool]) -> Path:
    """Merge into the committed summary and return its path.

    known: name of each definition -> whether it has workloads. Entries of other definitions are dropped; a
    definition without a workload that could be measured here keeps its entry.
    """
    old = {name: value for name, value in read_summary(root).items() if known.get(name)}
    new = {item.definition: entry(item) for item in measured if item.trials}
    merged = old | new
    write_json(root / SUMMARY, {name: merged[name] for name in sorted(merged)})
    return root / SUMMARY
