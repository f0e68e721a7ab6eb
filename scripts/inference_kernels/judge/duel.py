"""A candidate against its task's baseline: both validated, then timed in turns (ABBA), and the speedups."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.core.solutions import read_solution, solution_files
from inference_kernels.core.tasks import Task
from inference_kernels.core.workloads import Available
from inference_kernels.judge.checks import finish, validate
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.process import any_cpu
from inference_kernels.judge.record import counted, fill_record, new_record
from inference_kernels.judge.stats import geometric_mean, median_ratio
from inference_kernels.judge.timing import MODES, Trial, prepare, record_timing
from inference_kernels.judge.verdicts import STATUSES, CannotJudge, Rejected

# Launches of 7 to 28 us differed by up to 4 % from themselves in single duels (docs/judge.md).
SHORT_US = 30
# Eager calls go at the host's pace, which changes by half within some tens of calls (docs/judge.md): the sides take
# turns at each call and share a CPU, another one after so many.
CALLS_ON_A_CPU = 5


def find_baseline(root: Path, task: Task, override: str | None) -> dict[str, Any]:
    """The task's baseline, or another solution by name; CannotJudge if it is not in the repository."""
    name = override or task.baseline
    for path in solution_files(root):
        solution = read_solution(path)
        if solution.get("name") == name and solution.get("definition") == task.definition:
            return solution
    raise CannotJudge(
        expected=f"the baseline {name} of {task.definition}",
        found="no such solution",
        where=str(root / "solutions"),
        remedy="add it, or name another with --baseline",
    )


def duel(
    judge: Judge, definition: dict, candidate: dict, baseline: dict, only: tuple[str, ...], first: int = 1
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(candidate's record, baseline's record) of every workload. A baseline that fails is CannotJudge.

    first: who goes first until the last stage, 0 the candidate, 1 the baseline.
    """
    task = judge.task(definition["name"])
    subjects = [Subject(judge, definition, solution) for solution in (candidate, baseline)]
    try:
        for item in judge.workloads(definition, only):
            yield _one_workload(judge, subjects, item, task, first)
    finally:
        for subject in subjects:
            subject.retire()


def _one_workload(
    judge: Judge, subjects: list[Subject], item: Available, task: Task, first: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    seed = secrets.randbits(48)
    records = [
        new_record(subject, item, task, seed) | {"went_first": side == first} for side, subject in enumerate(subjects)
    ]
    try:
        case = judge.load(subjects[0].definition, item, task, seed)
    except Rejected as error:
        for record in records:
            record |= {"status": error.status, "detail": error.detail}
        return records[0], records[1]
    floor, benches, before = judge.floor(case), [None, None], judge.state()
    trials: dict[str, list[list[Trial]]] = {mode: [[], []] for mode in MODES}
    try:
        for stage in _stages(task, judge.options.validation_only):
            for side in _order(stage, first):
                seconds = records[side]["seconds"]
                with (
                    counted(seconds, "total"),
                    _turn_of(subjects[side], side),
                    counted(seconds, "start") if stage[0] == "start" else nullcontext(),
                ):
                    _run_stage(stage, side, subjects, benches, case, trials, task)
    except _SideFailed as failure:
        error, side = failure.error, failure.side
        records[side] |= {"status": error.status, "detail": error.detail}
        subjects[side].retire()
        if side == 1:
            if first == 0:
                # A candidate that goes first may leave the baseline no memory, or no peace: now the baseline does.
                subjects[0].retire()
                return _one_workload(judge, subjects, item, task, 1)
            raise CannotJudge(
                expected=f"a baseline that passes {item.uuid}",
                found=str(error),
                where=subjects[1].name,
                remedy="repair it, or name another with --baseline",
            ) from error
        if benches[1] is None:
            records[1] |= {"status": "not_reached", "detail": "the candidate failed first"}
    clocks = {"before": before, "after": judge.state()}
    for record, bench in zip(records, benches):
        fill_record(record, bench, floor)
        record["clocks"] = clocks
    return records[0], records[1]


def _order(stage: tuple[str, Any], first: int) -> tuple[int, int]:
    """The sides of a stage in turn: `first` begins. Timed runs go ABBA: a steady drift of the clocks cancels out. At
    the end the candidate is the first to be looked at, because what it left running is not the baseline's.
    """
    begins = 0 if stage[0] == "finish" else first
    if stage[0] == "timed" and stage[1].number % 2:
        begins = 1 - begins
    return begins, 1 - begins


class _SideFailed(Exception):
    def __init__(self, side: int, error: Rejected):
        super().__init__(str(error))
        self.side, self.error = side, error


@contextmanager
def _turn_of(subject: Subject, side: int) -> Iterator[None]:
    """Around a stage. A baseline must find itself as it was left: it may not be slowed down behind its back."""
    if side == 1 and (found := subject.disturbed()):
        subject.retire()
        raise _SideFailed(0, Rejected("tampered", f"changed how the system treats the baseline's worker: {found}"))
    yield
    if side == 1:
        subject.worker().leave()


@dataclass(frozen=True)
class Run:
    """Timed calls of one side on end. number: among those of its mode; opens: a trial begins."""

    mode: str
    number: int
    opens: bool
    count: int
    warmup: int


def timed_stages(timing: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A task's trials: the launches of each on end, then its eager calls one by one, on one CPU for both sides."""
    iterations = timing["iters"]
    for trial in range(timing["trials"]):
        yield "timed", Run("launch", trial, True, iterations, 1 if trial else timing["warmup"])
        for call in range(iterations):
            if call % CALLS_ON_A_CPU == 0:
                yield "keep_to", any_cpu()
            yield (
                "timed",
                Run("call", trial * iterations + call, call == 0, 1, 1 if trial or call else timing["warmup"]),
            )
        yield "keep_to", None


def _stages(task: Task, validation_only: bool) -> list[tuple[str, Any]]:
    if validation_only:
        return [("start", None), ("validate", None), ("finish", None)]
    return [
        ("start", None),
        ("validate", None),
        ("prepare", None),
        *timed_stages(task.timing),
        ("summarise", None),
        ("finish", None),
    ]


def _run_stage(
    stage: tuple[str, Any],
    side: int,
    subjects: list[Subject],
    benches: list,
    case: Any,
    trials: dict[str, list[list[Trial]]],
    task: Task,
) -> None:
    what, detail = stage
    iterations = task.timing["iters"]
    try:
        if what == "start":
            subjects[side].worker().keep_to(None)  # also where a failed duel left it held
        elif what == "validate":
            benches[side] = subjects[side].bench(case)
            benches[side].load()
            validate(benches[side])
        elif what == "prepare":
            prepare(benches[side])
        elif what == "timed":
            if detail.opens:
                trials[detail.mode][side].append(Trial(benches[side], detail.mode, iterations))
            trials[detail.mode][side][-1].go_on(detail.count, detail.warmup)
        elif what == "keep_to":
            benches[side].worker.keep_to(detail)
        elif what == "summarise":
            for mode in MODES:
                samples = [sample for trial in trials[mode][side] for sample in trial.samples]
                record_timing(benches[side], mode, samples, iterations * task.timing["trials"])
        else:
            finish(benches[side])
    except Rejected as error:
        raise _SideFailed(side, error) from error


def duels(
    judge: Judge, definition: dict, candidate: dict, baseline: dict, only: tuple[str, ...], count: int
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The pairs of `count` duels, each in new processes; the first that rejects the candidate is the last.

    A kernel is up to some percent faster or slower in one process than in another, for as long as it lives, and that
    depends on who loaded and allocated what first (docs/judge.md): the sides take turns in going first, and who begins
    is left to chance.
    """
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    chance = secrets.randbelow(2)
    for number in range(count):
        pairs += duel(judge, definition, candidate, baseline, only, (chance + number) % 2)
        if not verdict(pairs)["accepted"]:
            break
    return pairs


def verdict(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """accepted (every judged workload passes each time, and there is one), speedups by workload and group, mean.

    The speedup of a workload is the geometric mean over its duels; `duels` has the mean over workloads of each duel.
    """
    judged = [pair for pair in pairs if STATUSES[pair[0]["status"]][0] != "void"]
    ratios: dict[str, list[float]] = {}
    groups: dict[str, list[float]] = {}
    for one, other in judged:
        if ratio := speedup(one, other):
            ratios.setdefault(one["workload"], []).append(ratio)
            groups.setdefault(f"{one['group_axis']}={one['axes'][one['group_axis']]}", []).append(ratio)
    speedups = {workload: geometric_mean(values) for workload, values in ratios.items()}
    names = {pair[0]["workload"] for pair in judged}
    return {
        "accepted": bool(judged) and all(one["status"] == "pass" for one, _ in judged),
        "judged": len(names),
        "not_judged": len({pair[0]["workload"] for pair in pairs} - names),
        "rejected": [
            {"workload": one["workload"], "status": one["status"], "detail": one["detail"]}
            for one, _ in judged
            if one["status"] != "pass"
        ],
        "duels": [geometric_mean(values) for values in zip(*ratios.values())],
        "speedups": speedups,
        "groups": {label: geometric_mean(values) for label, values in groups.items()},
        "geometric_mean": geometric_mean(list(speedups.values())) if speedups else None,
    }


def one_duel_says_little(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Why not to trust a single duel on some workload: what both sides took there on a GPU. Empty if there is none."""
    timed = [
        (one, other) for one, other in pairs if speedup(one, other) and one["environment"]["timer"] == "cuda_events"
    ]
    if any(one["timed"] == "call" for one, _ in timed):
        return "eager calls go at the host's pace and differ by some percent between two processes"
    if any(max(map(_median, pair)) < SHORT_US for pair in timed):
        return f"launches below {SHORT_US} us differ by some percent between two processes"
    return ""


def speedup(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """How many times faster the candidate's record is than the baseline's, None if that was not measured.

    Of launches the ratio of the medians. Of eager calls the median of the ratios of two made in turn, at one pace of
    the host: of a solution and itself it is closer to 1 (docs/judge.md).
    """
    if one["status"] != "pass" or not one["timing"] or not other.get("timing"):
        return None
    if one["timed"] == "launch":
        return _median(other) / _median(one)
    own, theirs = (record["timing"]["call"]["samples"] for record in (one, other))
    return median_ratio(theirs, own)


def _median(record: dict[str, Any]) -> float:
    return record["timing"][record["timed"]]["median_us"]
