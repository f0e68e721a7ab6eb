"""One solution's worker with one workload: moves bytes between judge and worker and makes calls.

What must be true of them is in judge/checks.py; what is timed, in judge/timing.py.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from inference_kernels.core.tensors import byte_view, raw_bytes
from inference_kernels.judge.case import Arrangement, JudgedCase, nbytes
from inference_kernels.judge.process import WorkerProcess
from inference_kernels.judge.rearrange import DrawnMove, move_message
from inference_kernels.judge.stats import Timing
from inference_kernels.judge.verdicts import CannotJudge
from inference_kernels.judge.window import Piece, copy_bytes, window_fulls

if TYPE_CHECKING:
    import torch

# 0xFF bytes are NaN in every wide float; the second pattern finds what the first hides: -1 is a legal id.
POISONS = (0xFF, 0xA5)
INPUT_SETS = 3
# A larger input that no move touches exists once for all input sets; it is checked at the end alone.
LARGE_INPUT_BYTES = 2**28


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

    comparisons: dict[str, dict[str, Any]] = field(default_factory=dict)
    timing: dict[str, Timing] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checked_calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"first_calls": 0.0, "kernels": 0.0})


@dataclass(frozen=True)
class Answer:
    """What a worker claims about calls, not checked yet: nanoseconds of each, and of work still under way after it.

    wall_ns: what the request took on the judge's clock; first: nothing of this mode was called before.
    """

    ns: Any
    tail_ns: Any
    wall_ns: int
    first: bool


class Bench:
    """One solution's worker with the input sets of one workload.

    tails: nanoseconds of late work after each call since checks.require_no_tails last looked. poison: the byte that
    lay in the outputs before the last call.
    """

    def __init__(self, worker: WorkerProcess, case: JudgedCase, limits: Limits, overhead_ns: float = 0.0):
        import torch

        self.worker, self.case, self.limits = worker, case, limits
        self.overhead_ns = overhead_ns
        self.sheet = Sheet()
        generator = torch.Generator().manual_seed(case.seed)
        self.sets = [Arrangement(case, generator) for _ in range(INPUT_SETS)]
        self.random = random.Random(case.seed)
        self.warm: set[str] = set()
        self.tails: list[float] = []
        self.poison = POISONS[0]

    def load(self) -> None:
        """Hand over the captured inputs and two rearrangements of them, each at addresses of its own."""
        self.worker.ask("axes", self.limits.call, outputs=self.case.output_specs())
        for number, arrangement in enumerate(self.sets):
            if number:
                arrangement.take_all(after_prepare=False)
            self._hand_over(number, arrangement.inputs())

    def _hand_over(self, number: int, values: dict[str, Any]) -> None:
        own, shared, scalars = {}, {}, {}
        for name, value in values.items():
            if not hasattr(value, "shape"):
                scalars[name] = value
            elif self._is_shared(number, name, value):
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

    def _is_shared(self, number: int, name: str, value: Any) -> bool:
        """Tell whether all sets share this input: large tensors that no move touches (expert banks) exist once."""
        return bool(number) and value is self.case.inputs[name] and nbytes(value) > LARGE_INPUT_BYTES

    def own_inputs(self, number: int) -> dict[str, "torch.Tensor"]:
        """Return the tensors that the judge handed over for this set, as they must be now."""
        return {
            name: value
            for name, value in self.sets[number].inputs().items()
            if hasattr(value, "shape") and not self._is_shared(number, name, value)
        }

    def ready(self, number: int, mode: str, drawn: list[DrawnMove], poison: int, fresh: bool) -> None:
        """Let the worker rearrange the inputs of a set and poison its outputs; the next `go` calls with them."""
        self.poison = poison
        orders = {index: move.order for index, move in enumerate(drawn)}
        fulls = list(window_fulls({index: nbytes(order) for index, order in orders.items()}))
        if len(fulls) > 1:
            raise CannotJudge(
                expected="orders that fit in one half of the shared-memory buffer",
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
            moves=list(map(move_message, drawn)),
            orders=pieces,
            poison=poison,
            fresh=fresh,
        )

    def go(self, mode: str, count: int) -> Answer:
        """Make `count` calls of the set made ready. The answer is the worker's word: checks.checked_call checks it."""
        first = mode not in self.warm
        timeout = self.limits.build if first else self.limits.call
        self.warm.add(mode)
        begun = time.perf_counter_ns()
        answer = self.worker.ask("go", timeout, wants=("ns", "tail_ns"), count=count)
        return Answer(answer["ns"], answer["tail_ns"], time.perf_counter_ns() - begun, first)

    def prepare(self, number: int, warmup: int) -> None:
        """Let the worker make (and on a GPU capture) the launch of a set."""
        begun = time.perf_counter()
        self.worker.ask("prepare", self.limits.build, number=number, warmup=warmup)
        if not number:
            self.sheet.seconds["first_calls"] += time.perf_counter() - begun

    def burst(self, mode: str, count: int) -> int:
        """Time `count` back-to-back calls or launches with the request, in nanoseconds of the judge's clock."""
        begun = time.perf_counter_ns()
        self.worker.ask("burst", self.limits.build, mode=mode, number=0, count=count)
        elapsed = time.perf_counter_ns() - begun
        self.sheet.seconds["kernels"] += elapsed / 1e9
        return elapsed

    def outputs(self, number: int) -> dict[str, "torch.Tensor"]:
        """Take the outputs of the set's last call as the worker returns them, on the judge's device."""
        import torch

        found = {name: torch.empty_like(like) for name, like in self.case.expected.items()}
        for pieces in self._handed_back(number, "outputs", found):
            self.worker.window.take(pieces, found)
        return found

    def output_bytes(self, number: int) -> dict[str, bytes]:
        """Take the raw bytes of the outputs of the set's last call, by name."""
        return {name: bytes(raw_bytes(value)) for name, value in self.outputs(number).items()}

    def input_pieces(self, number: int, own: dict[str, "torch.Tensor"]) -> Iterator[tuple[str, int, "torch.Tensor"]]:
        """Yield pieces of the inputs `own` of a set as they are in the worker: (name, first byte, bytes)."""
        import torch

        for pieces in self._handed_back(number, "inputs", own):
            for name, start, place, count in pieces:
                found = torch.empty_like(byte_view(own[name])[start : start + count])
                copy_bytes(found, self.worker.window.bytes[place : place + count])
                yield name, start, found

    def _handed_back(self, number: int, what: str, forms: dict[str, "torch.Tensor"]) -> Iterator[list[Piece]]:
        """Yield fillings of the shared-memory buffer with the outputs or inputs of these forms.

        Copy one before asking for the next, and before looking at it: the worker may change what lies there. Whoever
        stops half way leaves a request without its answer: the worker must be retired then.
        """
        fulls = list(window_fulls({name: nbytes(value) for name, value in forms.items()}))
        posted = [self.worker.post("give", number=number, what=what, pieces=pieces) for pieces in fulls[:1]]
        for pieces, following in zip_longest(fulls, fulls[1:]):
            self.worker.answer(posted.pop(), self.limits.build)
            if following:  # fills one half while the caller empties the other
                posted.append(self.worker.post("give", number=number, what=what, pieces=following))
            yield pieces
