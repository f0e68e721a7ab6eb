"""A candidate against its task's baseline: both validated, then timed interleaved (ABBA), and the speedups."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.core.solutions import read_solution, solution_files
from inference_kernels.core.tasks import Task
from inference_kernels.core.types import Definition, TaskTiming
from inference_kernels.core.workloads import Available
from inference_kernels.judge.bench import Bench
from inference_kernels.judge.case import JudgedCase
from inference_kernels.judge.checks import finish, validate
from inference_kernels.judge.judge import Judge, Subject
from inference_kernels.judge.process import any_cpu
from inference_kernels.judge.record import counted, fill_record, new_record, reject
from inference_kernels.judge.stats import geometric_mean, median_ratio
from inference_kernels.judge.timing import MODES, Trial, prepare, record_timing
from inference_kernels.judge.types import JudgeRecord, LeftOut, Pair, RawSolution, Rejection, Verdict
from inference_kernels.judge.verdicts import STATUSES, CannotJudge, Rejected

# Shorter launches differ from themselves by some percent in single duels: docs/judge.md, by solution.
SHORT_US = 30
# Eager calls go at the host's pace, which on H200 hosts changes by half within tens of calls: calls of both sides are
# interleaved one by one on one CPU, and move to another CPU after this many.
CALLS_ON_A_CPU = 5


def find_baseline(root: Path, task: Task, override: str | None) -> RawSolution:
    """Find the task's baseline, or another solution by name; CannotJudge if it is not in the repository."""
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
    judge: Judge,
    definition: Definition,
    candidate: RawSolution,
    baseline: RawSolution,
    only: tuple[str, ...],
    first: int = 1,
) -> Iterator[Pair]:
    """Yield the pair of records of every workload; CannotJudge for a baseline that fails.

    first: the side that begins each stage but the last, 0 the candidate, 1 the baseline.
    """
    task = judge.task(definition["name"])
    subjects = [Subject(judge, definition, solution) for solution in (candidate, baseline)]
    try:
        for item in judge.workloads(definition, only):
            yield _one_workload(judge, subjects, item, task, first)
    finally:
        for subject in subjects:
            subject.retire()


def _one_workload(judge: Judge, subjects: list[Subject], item: Available, task: Task, first: int) -> Pair:
    seed = secrets.randbits(48)
    records = [new_record(subject, item, task, seed) for subject in subjects]
    for side, record in enumerate(records):
        record["went_first"] = side == first
    try:
        case = judge.load(subjects[0].definition, item, task, seed)
    except Rejected as error:
        for record in records:
            reject(record, error)
        return records[0], records[1]
    floor, before = judge.floor(case), judge.state()
    benches: list[Bench | None] = [None, None]
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
        side = failure.side
        reject(records[side], failure.error)
        subjects[side].retire()
        if side == 1:
            if first == 0:
                # A candidate run first may exhaust memory or slow the baseline; run the baseline first instead.
                subjects[0].retire()
                return _one_workload(judge, subjects, item, task, 1)
            raise CannotJudge(
                expected=f"a baseline that passes {item.uuid}",
                found=str(failure.error),
                where=subjects[1].name,
                remedy="repair it, or name another with --baseline",
            ) from failure.error
        if benches[1] is None:
            reject(records[1], Rejected("not_reached", "the candidate failed first"))
    clocks = {"before": before, "after": judge.state()}
    for record, bench in zip(records, benches):
        fill_record(record, bench, floor)
        record["clocks"] = clocks
    return records[0], records[1]


def _order(stage: tuple[str, Any], first: int) -> tuple[int, int]:
    """Order the sides of a stage: `first` begins.

    Timed runs go ABBA: a steady drift of the clocks cancels out. In the last stage the candidate begins, because what
    it left running is not the baseline's.
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
    """Run a stage of one side; the candidate failed if the baseline's scheduling state changed since its last stage."""
    if side == 1 and (found := subject.disturbed()):
        subject.retire()
        raise _SideFailed(0, Rejected("tampered", f"changed the scheduling state of the baseline's worker: {found}"))
    yield
    if side == 1:
        subject.worker().leave()


@dataclass(frozen=True)
class Run:
    """Consecutive timed calls of one side. number: among those of its mode; opens: a trial begins."""

    mode: str
    number: int
    opens: bool
    count: int
    warmup: int


def timed_stages(timing: TaskTiming) -> Iterator[tuple[str, Any]]:
    """Yield the stages of a task's trials: consecutive launches, then eager calls one by one on a CPU of both sides."""
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
    benches: list[Any],
    case: JudgedCase,
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
    judge: Judge,
    definition: Definition,
    candidate: RawSolution,
    baseline: RawSolution,
    only: tuple[str, ...],
    count: int,
) -> list[Pair]:
    """Return the pairs of `count` duels, each in new processes; one that rejects the candidate is the last.

    A kernel is up to some percent faster or slower in one process than in another, for as long as the process lives,
    and that depends on who loaded and allocated what first (docs/judge.md): the sides alternate in going first, and
    who begins is random.
    """
    pairs: list[Pair] = []
    begins = secrets.randbelow(2)
    for number in range(count):
        pairs += duel(judge, definition, candidate, baseline, only, (begins + number) % 2)
        if verdict(pairs)["rejected"]:
            break
    return pairs


def verdict(pairs: list[Pair]) -> Verdict:
    """Decide over all pairs: accepted if every workload was judged, and passed, each time; a part is not the whole.

    The speedup of a workload is the geometric mean over its duels; `duels` has the mean over workloads of each duel.
    """
    judged = [pair for pair in pairs if STATUSES[pair[0]["status"]][0] != "void"]
    void = {one["workload"]: one for one, _ in pairs if STATUSES[one["status"]][0] == "void"}
    rejected: list[Rejection] = [
        {"workload": one["workload"], "status": one["status"], "detail": one["detail"]}
        for one, _ in judged
        if one["status"] != "pass"
    ]
    ratios: dict[str, list[float]] = {}
    groups: dict[str, list[float]] = {}
    for one, other in judged:
        if ratio := speedup(one, other):
            ratios.setdefault(one["workload"], []).append(ratio)
            groups.setdefault(f"{one['group_axis']}={one['axes'][one['group_axis']]}", []).append(ratio)
    speedups = {workload: geometric_mean(values) for workload, values in ratios.items()}
    complete = bool(judged) and not void
    return {
        "accepted": complete and not rejected,
        "complete": complete,
        "judged": len({one["workload"] for one, _ in judged} - set(void)),
        "not_judged": len(void),
        "left_out": [left_out(one) for one in void.values()],
        "rejected": rejected,
        "duels": [geometric_mean(list(values)) for values in zip(*ratios.values())],
        "speedups": speedups,
        "groups": {label: geometric_mean(values) for label, values in groups.items()},
        "geometric_mean": geometric_mean(list(speedups.values())) if speedups else None,
    }


def left_out(record: JudgeRecord) -> LeftOut:
    """Say why a workload was not judged, and what helps: the command in the detail, or one that brings the file."""
    status, detail = record["status"], record["detail"]
    remedy = "repair the reference or the workload"
    if status == "not_materialised":
        reason, _, command = detail.partition(": ")
        remedy = command
        if reason not in ("not fetched", "not materialised"):
            remedy = f"python scripts/sync_hub.py pull --definition {record['definition']}"
        if "blob/starter/" in command:
            remedy = f"git checkout -- blob/starter/{record['definition']}"
    return {"workload": record["workload"], "status": status, "detail": detail, "remedy": remedy}


def require_whole(result: Verdict, definition: str) -> None:
    """Raise CannotJudge, with the list and the commands that help, unless every workload was judged."""
    if result["complete"]:
        return
    missing = result["left_out"]
    names = ", ".join(f"{item['workload']} ({item['status']})" for item in missing)
    raise CannotJudge(
        expected="every workload of the task judged, or of its dev list with --dev",
        found=f"{len(missing)} of {result['judged'] + len(missing)} not judged: {names}" if missing else "no workload",
        where=definition,
        remedy="; ".join(dict.fromkeys(item["remedy"] for item in missing)) or "import or pull its workloads",
    )


def single_duel_warning(pairs: list[Pair]) -> str:
    """Say why a single duel cannot resolve the difference of times on a GPU; empty if it can."""
    timed = [
        (one, other) for one, other in pairs if speedup(one, other) and one["environment"]["timer"] == "cuda_events"
    ]
    if any(one["timed"] == "call" for one, _ in timed):
        return "eager calls go at the host's pace and differ by some percent between two processes"
    if any(max(map(_median, pair)) < SHORT_US for pair in timed):
        return f"launches below {SHORT_US} us differ by some percent between two processes"
    return ""


def speedup(one: JudgeRecord, other: JudgeRecord) -> float | None:
    """Compute how many times faster the candidate's record is than the baseline's; None if that was not measured.

    Launches: the ratio of the medians. Eager calls: the median ratio of paired samples, which share the host's pace;
    for a solution and itself it is closer to 1 (docs/judge.md).
    """
    if one["status"] != "pass" or not one["timing"] or not other.get("timing"):
        return None
    if one["timed"] == "launch":
        return _median(other) / _median(one)
    own, theirs = (record["timing"]["call"]["samples"] for record in (one, other))
    return median_ratio(theirs, own)


def _median(record: JudgeRecord) -> float:
    return record["timing"][record["timed"]]["median_us"]
