"""Every rule that calls and their outputs must keep, one function each. A broken one is Rejected with its status."""

from typing import TYPE_CHECKING

from inference_kernels.core.compare import Comparison, compare
from inference_kernels.core.tensors import byte_view
from inference_kernels.judge.bench import LARGE_INPUT_BYTES, POISONS, Answer, Bench
from inference_kernels.judge.case import nbytes
from inference_kernels.judge.verdicts import Rejected

if TYPE_CHECKING:
    import torch

NUMERIC = ("mismatch", "non_finite", "unwritten", "stale")
# Work still under way after a call's end event: more than this is work on a stream that nobody waited for. One such
# call proves nothing, as the host itself may be late by milliseconds; a trick that pays needs most calls.
TAIL_SHARE, TAIL_NS = 0.2, 150_000
LATE_SHARE, LATE_AT_LEAST = 0.25, 3
# Calls may claim this much more than the judge's clock shows for the whole request.
CLOCK_SHARE, CLOCK_SLACK_NS = 1.05, 50_000
# Outputs that list selected ids in increasing order, -1 at the end: output -> axis that bounds the ids.
SELECTIONS = {"topk_ids": "E", "block_ids": ""}


def validate(bench: Bench) -> None:
    """Call every input set `repeat` times with different poison, then once with other values in its memory.

    After each call every output element is compared, and every input byte.
    """
    if not differ(bench.case.expected, bench.sets[1].expected()):
        bench.sheet.notes.append("no rearrangement changes the outputs here: memoisation is not excluded")
    outcomes: dict[str, list[Rejected | None]] = {}
    repeats = max(2, bench.limits.repeat)
    for turn in range(repeats + 1):
        changed = turn == repeats
        for number in bench.random.sample(range(len(bench.sets)), len(bench.sets)):
            drawn = bench.sets[number].take_all(after_prepare=False) if changed else []
            bench.ready(number, "call", drawn, POISONS[turn % 2], fresh=True)
            checked_call(bench, "call")
            label = f"input set {number}" + (" with other values" if changed else "")
            outcomes.setdefault(label, []).append(_numeric_failure(bench, number, "call"))
            require_inputs(bench, number)
    require_no_tails(bench)
    require_right(outcomes)
    require_clean(bench)


def finish(bench: Bench) -> None:
    """Check, after the last call, the inputs of every set, the measuring machinery and processes left running."""
    for number in range(len(bench.sets)):
        require_inputs(bench, number, everything=True)
    require_clean(bench)


def checked_call(bench: Bench, mode: str, count: int = 1) -> list[float]:
    """Make calls of the set made ready and return nanoseconds of each; note late work for require_no_tails."""
    answer = bench.go(mode, count)
    require_times(answer, count)
    spent = answer.wall_ns if answer.first else sum(answer.ns)
    bench.sheet.seconds["first_calls" if answer.first else "kernels"] += spent / 1e9
    tail = max(answer.tail_ns)
    bench.tails.append(tail if tail > max(TAIL_SHARE * max(answer.ns), TAIL_NS) else 0.0)
    return answer.ns


def require_times(answer: Answer, count: int) -> None:
    """Reject a missing number (bad_samples), and a sum beyond the judge's clock (timer_disagrees)."""
    for times in (answer.ns, answer.tail_ns):
        if not isinstance(times, list) or len(times) != count or not {type(value) for value in times} <= {int, float}:
            raise Rejected("bad_samples", f"{times!r:.100} for {count} calls")
    if sum(answer.ns) > CLOCK_SHARE * answer.wall_ns + CLOCK_SLACK_NS:
        raise Rejected("timer_disagrees", "a call claims more time than passed on the judge's clock")


def require_no_tails(bench: Bench) -> None:
    """Reject (leftover) if work went on after too many of the calls since the last check."""
    calls, late = len(bench.tails), sorted(filter(None, bench.tails))
    bench.tails = []
    if len(late) >= max(LATE_AT_LEAST, LATE_SHARE * calls):
        raise Rejected(
            "leftover",
            f"after {len(late)} of {calls} calls work on another stream went on, for "
            f"{late[len(late) // 2] / 1e3:.0f} us in the median",
        )


def require_outputs(bench: Bench, number: int, mode: str) -> None:
    """Compare every element of the outputs of the set's last call; Rejected with the failure of the first bad one."""
    outputs = bench.outputs(number)
    bench.sheet.checked_calls[mode] = bench.sheet.checked_calls.get(mode, 0) + 1
    for name, expected in bench.sets[number].expected().items():
        result = compare(outputs[name], expected, bench.case.task.tolerance)
        _note_worst(bench, name, result)
        if not result.passed:
            raise failure(bench, number, mode, name, outputs[name], result)


def _note_worst(bench: Bench, name: str, result: Comparison) -> None:
    known = bench.sheet.comparisons.get(name)
    rank = (not result.passed, result.tolerance_used or 0.0)
    if known is None or rank > (known["status"] != "pass", known["tolerance_used"] or 0.0):
        bench.sheet.comparisons[name] = result.to_json()


def failure(bench: Bench, number: int, mode: str, name: str, actual: "torch.Tensor", result: Comparison) -> Rejected:
    """Classify an output beyond its tolerance: unwritten, stale, or the status and figures of its comparison."""
    where, expected = f"{name} ({mode}, input set {number})", bench.sets[number].expected()[name]
    if untouched := untouched_elements(actual, expected, bench.poison):
        return Rejected("unwritten", f"{where}: {untouched} elements hold the bytes from before the call")
    if matches_other(bench, number, name, actual):
        return Rejected("stale", f"{where}: the result of other inputs: memoised, or computed too early")
    detail = f"{where}: {result.describe()}"
    if name in SELECTIONS and (words := describe_selection(actual, expected, bench.case.axes.get(SELECTIONS[name]))):
        detail += f"; {words}"
    return Rejected(result.status if result.status in NUMERIC else "mismatch", detail)


def untouched_elements(actual: "torch.Tensor", expected: "torch.Tensor", poison: int) -> int:
    """Count wrong elements all of whose bytes are the poison; 0 for one-byte elements, where it proves nothing.

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


def matches_other(bench: Bench, number: int, name: str, actual: "torch.Tensor") -> bool:
    """Tell whether this is the right output for another input set, or for this one before its last change."""
    others = [bench.case.expected] + [item.previous for item in bench.sets]
    others += [item.expected() for index, item in enumerate(bench.sets) if index != number]
    wanted, tolerance = bench.sets[number].expected()[name], bench.case.task.tolerance
    return any(
        not compare(other[name], wanted, tolerance).passed and compare(actual, other[name], tolerance).passed
        for other in others
    )


def require_right(outcomes: dict[str, list[Rejected | None]]) -> None:
    """Raise the first failure of repeated calls; nondeterministic if some calls on the same inputs were right.

    Results of other inputs (stale) explain themselves and go first. Where one call seems unwritten and another is
    otherwise wrong, the poison merely equals what the solution wrote (-1, a NaN): the other one counts.
    """
    failures = [result for results in outcomes.values() for result in results if result]
    for found in failures:
        if found.status == "stale":
            raise found
    for label, results in outcomes.items():
        wrong = [result for result in results if result]
        if wrong and len(wrong) < len(results):
            raise Rejected(
                "nondeterministic",
                f"{label}: {len(wrong)} of {len(results)} calls wrong; first {wrong[0].status}: {wrong[0].detail}",
            )
    if failures:
        raise next((result for result in failures if result.status != "unwritten"), failures[0])


def _numeric_failure(bench: Bench, number: int, mode: str) -> Rejected | None:
    """Return what is wrong with the values of the outputs; any other failure is raised."""
    try:
        require_outputs(bench, number, mode)
    except Rejected as error:
        if error.status not in NUMERIC:
            raise
        return error
    return None


def require_inputs(bench: Bench, number: int, everything: bool = False) -> None:
    """Reject (input_modified) unless the set's inputs are byte for byte what the judge handed over and moved.

    Large ones (LARGE_INPUT_BYTES) are compared only where `everything` is asked for.
    """
    import torch

    own = {
        name: value
        for name, value in bench.own_inputs(number).items()
        if everything or nbytes(value) <= LARGE_INPUT_BYTES
    }
    changed: dict[str, None] = {}
    for name, start, found in bench.input_pieces(number, own):
        if not torch.equal(found, byte_view(own[name])[start : start + len(found)]):
            changed[name] = None
    if changed:
        raise Rejected("input_modified", f"{', '.join(changed)} of input set {number} differ after a call")


def require_clean(bench: Bench) -> None:
    """Reject changed measuring machinery (tampered), and processes of the solution that still run (leftover)."""
    bench.worker.ask("check", bench.limits.call)
    if found := bench.worker.rescheduled():
        raise Rejected("tampered", f"another scheduling state: {found}")
    strays = bench.worker.strays()
    if strays:
        raise Rejected("leftover", f"{strays} processes still running")


def differ(one: dict[str, "torch.Tensor"], other: dict[str, "torch.Tensor"]) -> bool:
    """Tell whether two sets of outputs differ in any byte."""
    import torch

    return any(not torch.equal(byte_view(value), byte_view(other[name])) for name, value in one.items())


def describe_selection(actual: "torch.Tensor", expected: "torch.Tensor", limit: int | None) -> str:
    """Say which rule the first differing row breaks; `limit`: ids are below it. It never excuses a row."""
    rows = (actual != expected).flatten(0, -2).any(-1).nonzero().view(-1)
    if not len(rows):
        return ""
    row = int(rows[0])
    got, want = (tensor.flatten(0, -2)[row].tolist() for tensor in (actual, expected))
    return f"row {row}: {_fault(got, want, limit)}"


def _fault(got: list[int], want: list[int], limit: int | None) -> str:
    ids = [value for value in got if value != -1]
    outside = [value for value in ids if value < 0 or (limit is not None and value >= limit)]
    if outside:
        return f"id {outside[0]} out of range"
    if len(set(ids)) < len(ids):
        return "an id twice"
    if got[: len(ids)] != ids:
        return "padding before the end"
    wanted = {value for value in want if value != -1}
    if set(ids) != wanted:
        missing, extra = sorted(wanted - set(ids)), sorted(set(ids) - wanted)
        return f"another set: missing {missing[:3]}, instead {extra[:3]} (equal scores go to the lower id)"
    return "the right ids, not in increasing order"
