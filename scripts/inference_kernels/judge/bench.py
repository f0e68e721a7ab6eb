"""One solution on one workload: hand over inputs, make calls, check every output element and input byte.

What is timed, and how often timed calls are checked, is in judge/timing.py.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from inference_kernels.core.compare import Comparison, compare
from inference_kernels.core.tensors import byte_view, raw_bytes
from inference_kernels.judge.case import Arrangement, Case, nbytes
from inference_kernels.judge.checks import SELECTIONS, describe_selection
from inference_kernels.judge.process import WorkerProcess
from inference_kernels.judge.rearrange import Step, step_message
from inference_kernels.judge.stats import Timing
from inference_kernels.judge.verdicts import CannotJudge, Rejected
from inference_kernels.judge.window import Piece, copy_bytes, window_fulls

if TYPE_CHECKING:
    import torch

# 0xFF bytes are NaN in every wide float; the second pattern finds what the first hides: -1 is a legal id.
POISONS = (0xFF, 0xA5)
INPUT_SETS = 3
# An input above this size is compared once, at the end, instead of after every validated call.
INPUT_CHECK_BYTES = 2**28
NUMERIC = ("mismatch", "non_finite", "unwritten", "stale")
# Work still under way after a call's end event: more than this is work on a stream that nobody waited for. One such
# call proves nothing, as the host itself may be late by milliseconds; a trick that pays needs most calls.
TAIL_SHARE, TAIL_NS = 0.2, 150_000
LATE_SHARE, LATE_AT_LEAST = 0.25, 3


@dataclass
class Limits:
    """Seconds and repeats; `build` also bounds the first call of each mode, which may compile."""

    build: float = 600.0
    call: float = 60.0
    repeat: int = 2


@dataclass
class Sheet:
    """What is found out about one workload while it is judged.

    seconds: `first_calls`, of each kind, in which a solution may compile; `kernels`, its own time in all later ones.
    """

    comparisons: dict[str, dict] = field(default_factory=dict)
    timing: dict[str, Timing] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checked_calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"first_calls": 0.0, "kernels": 0.0})


class Bench:
    """One solution's worker with the input sets of one workload loaded."""

    def __init__(self, worker: WorkerProcess, case: Case, limits: Limits, device_name: str, overhead_ns: float = 0.0):
        import torch

        self.worker, self.case, self.limits, self.device_name = worker, case, limits, device_name
        self.overhead_ns = overhead_ns
        self.sheet = Sheet()
        generator = torch.Generator().manual_seed(case.seed)
        self.sets = [Arrangement(case, generator) for _ in range(INPUT_SETS)]
        self.random = random.Random(case.seed)
        self.warm: set[str] = set()
        self.tails: list[float] = []

    def load(self) -> None:
        """Hand over the captured inputs and two rearrangements of them, each at addresses of its own."""
        self.worker.ask("axes", self.limits.call, outputs=self.case.output_specs())
        for number, arrangement in enumerate(self.sets):
            if number:
                arrangement.take_all(after_prepare=False)
            self._hand_over(number, arrangement.inputs())
        if not differ(self.case.expected, self.sets[1].expected()):
            self.sheet.notes.append("no rearrangement changes the outputs here: memoisation is not excluded")

    def _hand_over(self, number: int, values: dict[str, Any]) -> None:
        own, shared, scalars = {}, {}, {}
        for name, value in values.items():
            if not hasattr(value, "shape"):
                scalars[name] = value
            elif number and self._is_shared(name, value):
                shared[name] = 0
            else:
                own[name] = value
        forms = {
            name: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in own.items()
        }
        self.worker.ask("inputs", self.limits.call, number=number, tensors=forms, shared=shared, scalars=scalars)
        posted = None
        for pieces in window_fulls({name: nbytes(value) for name, value in own.items()}):
            self.worker.window.put(pieces, own)  # into one half, while the worker empties the other
            if posted:
                self.worker.answer(posted, self.limits.call)
            posted = self.worker.post("take", number=number, pieces=pieces)
        if posted:
            self.worker.answer(posted, self.limits.call)

    def _is_shared(self, name: str, value: Any) -> bool:
        """Large tensors that no move touches (expert banks) exist once, at one address, for all sets."""
        return value is self.case.inputs[name] and nbytes(value) > INPUT_CHECK_BYTES

    def validate(self) -> None:
        """Every input set `repeat` times with different poison, then once with other values in its memory.

        After each call every output element is compared, and every input byte.
        """
        outcomes: dict[str, list[Rejected | None]] = {}
        for turn in range(max(2, self.limits.repeat) + 1):
            changed = turn == max(2, self.limits.repeat)
            for number in self.random.sample(range(len(self.sets)), len(self.sets)):
                steps = self.sets[number].take_all(after_prepare=False) if changed else []
                self.ready(number, "call", steps, POISONS[turn % 2], fresh=True)
                self.go("call", 1)
                label = f"input set {number}" + (" with other values" if changed else "")
                outcomes.setdefault(label, []).append(self._outcome(number, "call"))
                self.check_inputs(number)
        self.require_no_tails()
        _raise_worst(outcomes)
        self.require_clean()

    def _outcome(self, number: int, mode: str) -> Rejected | None:
        try:
            self.check_outputs(number, mode)
        except Rejected as error:
            if error.status not in NUMERIC:
                raise
            return error
        return None

    def ready(self, number: int, mode: str, steps: list[Step], poison: int, fresh: bool) -> None:
        self.poison = poison
        orders = {index: step.order for index, step in enumerate(steps)}
        fulls = list(window_fulls({index: nbytes(order) for index, order in orders.items()}))
        if len(fulls) > 1:
            raise CannotJudge(
                expected="orders that fit in one half of the window between judge and worker",
                found=f"{sum(map(nbytes, orders.values())):,} bytes",
                where=self.case.workload["uuid"],
                remedy="enlarge WINDOW_BYTES in judge/window.py",
            )
        pieces = fulls[0] if fulls else []
        self.worker.window.put(pieces, orders)
        self.worker.ask(
            "ready",
            self.limits.call,
            number=number,
            mode=mode,
            steps=list(map(step_message, steps)),
            orders=pieces,
            poison=poison,
            fresh=fresh,
        )

    def go(self, mode: str, count: int) -> dict[str, Any]:
        first = mode not in self.warm
        timeout = self.limits.build if first else self.limits.call
        self.warm.add(mode)
        begun = time.perf_counter_ns()
        answer = self.worker.ask("go", timeout, wants=("ns", "tail_ns"), count=count)
        wall = time.perf_counter_ns() - begun
        for times in (answer["ns"], answer["tail_ns"]):
            if (
                not isinstance(times, list)
                or len(times) != count
                or not all(type(value) in (int, float) for value in times)
            ):
                raise Rejected("bad_samples", f"{times!r:.100} for {count} calls")
        if sum(answer["ns"]) > 1.05 * wall + 50_000:
            raise Rejected("timer_disagrees", "a call claims more time than passed on the judge's clock")
        self.sheet.seconds["first_calls" if first else "kernels"] += (wall if first else sum(answer["ns"])) / 1e9
        tail = max(answer["tail_ns"])
        self.tails.append(tail if tail > max(TAIL_SHARE * max(answer["ns"]), TAIL_NS) else 0.0)
        return answer

    def prepare(self, number: int, warmup: int) -> None:
        """Let the worker make (and on a GPU capture) the launch of a set."""
        begun = time.perf_counter()
        self.worker.ask("prepare", self.limits.build, number=number, warmup=warmup)
        if not number:
            self.sheet.seconds["first_calls"] += time.perf_counter() - begun

    def burst(self, mode: str, count: int) -> int:
        """Nanoseconds on the judge's clock that `count` calls or launches back to back take, and asking for them."""
        begun = time.perf_counter_ns()
        self.worker.ask("burst", self.limits.build, mode=mode, number=0, count=count)
        elapsed = time.perf_counter_ns() - begun
        self.sheet.seconds["kernels"] += elapsed / 1e9
        return elapsed

    def require_no_tails(self) -> None:
        """Rejected (leftover) if work went on after too many of the calls since the last look."""
        calls, late = len(self.tails), sorted(filter(None, self.tails))
        self.tails = []
        if len(late) >= max(LATE_AT_LEAST, LATE_SHARE * calls):
            raise Rejected(
                "leftover",
                f"after {len(late)} of {calls} calls work on another stream went on, for "
                f"{late[len(late) // 2] / 1e3:.0f} us in the median",
            )

    def check_outputs(self, number: int, mode: str) -> None:
        """Take the outputs of the set's last call and compare every element."""
        arrangement = self.sets[number]
        outputs = self.outputs(number)
        self.sheet.checked_calls[mode] = self.sheet.checked_calls.get(mode, 0) + 1
        for name, expected in arrangement.expected().items():
            actual = outputs[name]
            result = compare(actual, expected, self.case.task.tolerance)
            self._note_worst(name, result)
            if not result.passed:
                raise self._failure(name, actual, expected, result, number, mode)

    def outputs(self, number: int) -> dict[str, "torch.Tensor"]:
        """The outputs of the set's last call as handed back, on the judge's device."""
        import torch

        found = {name: torch.empty_like(like) for name, like in self.case.expected.items()}
        for pieces in self._handed_back(number, "outputs", found):
            self.worker.window.take(pieces, found)
        return found

    def _handed_back(self, number: int, what: str, forms: dict[str, "torch.Tensor"]) -> Iterator[list[Piece]]:
        """Fillings of the window that carry the outputs or inputs of these forms, to be copied before the next.

        And before anybody looks at them: the worker may change what lies there. Whoever stops half way leaves a request
        without its answer: the worker must be retired then.
        """
        fulls = list(window_fulls({name: nbytes(value) for name, value in forms.items()}))
        posted = [self.worker.post("give", number=number, what=what, pieces=pieces) for pieces in fulls[:1]]
        for pieces, following in zip_longest(fulls, fulls[1:]):
            self.worker.answer(posted.pop(), self.limits.build)
            if following:  # fills one half while the caller empties the other
                posted.append(self.worker.post("give", number=number, what=what, pieces=following))
            yield pieces

    def output_bytes(self, number: int) -> dict[str, bytes]:
        """The raw outputs of the set's last call, by name."""
        return {name: bytes(raw_bytes(value)) for name, value in self.outputs(number).items()}

    def _note_worst(self, name: str, result: Comparison) -> None:
        known = self.sheet.comparisons.get(name)
        rank = (not result.passed, result.tolerance_used or 0.0)
        if known is None or rank > (known["status"] != "pass", known["tolerance_used"] or 0.0):
            self.sheet.comparisons[name] = result.to_json()

    def _failure(
        self, name: str, actual: "torch.Tensor", expected: "torch.Tensor", result: Comparison, number: int, mode: str
    ) -> Rejected:
        where = f"{name} ({mode}, input set {number})"
        untouched = untouched_elements(actual, expected, self.poison)
        if untouched:
            return Rejected("unwritten", f"{where}: {untouched} elements hold the bytes from before the call")
        if self._matches_other(name, actual, number):
            return Rejected("stale", f"{where}: the result of other inputs: memoised, or computed too early")
        words = (
            describe_selection(actual, expected, self.case.axes.get(SELECTIONS[name] or ""))
            if name in SELECTIONS
            else ""
        )
        return Rejected(
            result.status if result.status in NUMERIC else "mismatch",
            f"{where}: {result.describe()}" + (f"; {words}" if words else ""),
        )

    def _matches_other(self, name: str, actual: "torch.Tensor", number: int) -> bool:
        """Is this the right answer for another input set, or for this one as it was before?"""
        others = [self.case.expected] + [item.previous for item in self.sets]
        others += [item.expected() for index, item in enumerate(self.sets) if index != number]
        wanted, tolerance = self.sets[number].expected()[name], self.case.task.tolerance
        return any(
            not compare(other[name], wanted, tolerance).passed and compare(actual, other[name], tolerance).passed
            for other in others
        )

    def check_inputs(self, number: int, everything: bool = False) -> None:
        """Byte for byte: the set's inputs are what the judge handed over (and moved).

        Those above INPUT_CHECK_BYTES only where `everything` is asked for.
        """
        import torch

        own = {
            name: value
            for name, value in self.sets[number].inputs().items()
            if hasattr(value, "shape")
            and not (number and self._is_shared(name, value))
            and (everything or nbytes(value) <= INPUT_CHECK_BYTES)
        }
        changed: dict[str, None] = {}
        for pieces in self._handed_back(number, "inputs", own):
            for name, start, place, count in pieces:
                wanted = byte_view(own[name])[start : start + count]
                found = torch.empty_like(wanted)
                copy_bytes(found, self.worker.window.bytes[place : place + count])
                if not torch.equal(found, wanted):
                    changed[name] = None
        if changed:
            raise Rejected("input_modified", f"{', '.join(changed)} of input set {number} differ after a call")

    def finish(self) -> None:
        """Last looks: inputs of every set, the measuring machinery, processes left running."""
        for number in range(len(self.sets)):
            self.check_inputs(number, everything=True)
        self.require_clean()

    def require_clean(self) -> None:
        """The measuring machinery is as it was, and nothing that the solution started still runs."""
        self.worker.ask("check", self.limits.call)
        if found := self.worker.rescheduled():
            raise Rejected("tampered", f"another treatment by the system: {found}")
        strays = self.worker.strays()
        if strays:
            raise Rejected("leftover", f"{strays} processes still running")


def differ(one: dict[str, "torch.Tensor"], other: dict[str, "torch.Tensor"]) -> bool:
    """Do two sets of outputs differ in any byte?"""
    import torch

    return any(not torch.equal(byte_view(value), byte_view(other[name])) for name, value in one.items())


def untouched_elements(actual: "torch.Tensor", expected: "torch.Tensor", poison: int) -> int:
    """Wrong elements all of whose bytes are the poison; 0 for one-byte elements, where it proves nothing.

    0xFE counts as 0xFF: malloc cannot be told to write 0xFF.
    """
    import torch

    size = actual.element_size()
    if size == 1 or not actual.numel():
        return 0
    got, want = (tensor.view(-1).view(torch.uint8).view(-1, size) for tensor in (actual, expected))
    wrong = (got != want).any(1)
    values = {poison, 0xFE} if poison == 0xFF else {poison}
    return sum(int(((got == value).all(1) & wrong).sum()) for value in values)


def _raise_worst(outcomes: dict[str, list[Rejected | None]]) -> None:
    """Raise the first failure; one call wrong and another right, on the same inputs, is nondeterministic.

    Results of other inputs (stale) explain themselves and go first.
    """
    failures = [result for results in outcomes.values() for result in results if result]
    for failure in failures:
        if failure.status == "stale":
            raise failure
    for label, results in outcomes.items():
        wrong = [result for result in results if result]
        if wrong and len(wrong) < len(results):
            raise Rejected(
                "nondeterministic",
                f"{label}: {len(wrong)} of {len(results)} calls wrong; first {wrong[0].status}: {wrong[0].detail}",
            )
    if failures:
        raise failures[0]
