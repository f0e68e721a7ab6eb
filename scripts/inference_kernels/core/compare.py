"""Compare an output with its reference: every element, in chunks, with bounded scratch memory.

Rules (only tasks/<name>.json sets them):
    absolute_plus_relative   |x - ref| <= atol + rtol * |ref|
    absolute_or_relative     |x - ref| <= atol  or  |x - ref| / (|ref| + 1e-8) <= rtol
Non-finite elements on either side fail before any ratio is applied; integers and bools must be equal; a
comparison of no elements is not a pass.
"""

import math
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import SchemaError

if TYPE_CHECKING:
    import torch

RULES = ("absolute_plus_relative", "absolute_or_relative")
# The constant of flashinfer-bench's evaluator, which the rule absolute_or_relative reproduces.
RELATIVE_FLOOR = 1e-8
WORST_KEPT = 5
# Elements per chunk. CPU: two float32 buffers of 1 MiB stay in the L2 cache. GPU: two float64 buffers of 64 MiB.
CHUNK = {"cpu": 2**18, "cuda": 2**23}


@dataclass(frozen=True)
class Tolerance:
    """A task's acceptance rule; without `required_matched_ratio` every element must match."""

    atol: float
    rtol: float
    required_matched_ratio: float | None = None
    comparison: str = "absolute_plus_relative"

    def __post_init__(self) -> None:
        ratio = self.required_matched_ratio
        sane = (
            math.isfinite(self.atol)
            and self.atol >= 0
            and math.isfinite(self.rtol)
            and self.rtol >= 0
            and self.comparison in RULES
            and (ratio is None or 0 < ratio <= 1)
        )
        if not sane:
            raise SchemaError(
                expected=f"atol >= 0, rtol >= 0, a ratio in (0, 1] or null, a rule of {RULES}",
                found=str(self),
                where="tolerance",
                remedy="correct the task's tolerance",
            )


@dataclass
class Comparison:
    """The result of one comparison.

    status: pass | mismatch | non_finite | empty | shape | dtype
    mismatched: elements beyond their bound; with status non_finite the non-finite ones, the others are not judged.
    tolerance_used: largest quotient of an error and its bound (1.0 = at the limit); 0 or 1 for exact comparisons.
    relative_rms: RMS of the error over RMS of the reference; None where undefined.
    worst: the elements nearest to or beyond their bound: index, actual, expected.
    """

    status: str
    elements: int = 0
    mismatched: int = 0
    non_finite: int = 0
    max_abs_error: float | None = None
    tolerance_used: float | None = None
    relative_rms: float | None = None
    worst: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    @property
    def matched_ratio(self) -> float:
        return (self.elements - self.mismatched) / self.elements if self.elements else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """Describe the finding in words, for error lines."""
        if self.status in ("shape", "dtype", "empty"):
            return f"{self.status}: {self.worst[0]['found']}" if self.worst else "nothing to compare"
        worst = f"at {self.worst[0]['index']}: {self.worst[0]['actual']} for {self.worst[0]['expected']}"
        if self.status == "non_finite":
            return f"{self.non_finite} of {self.elements} elements non-finite, first {worst}"
        return f"{self.mismatched} of {self.elements} elements beyond the bound, worst {worst}"


def compare(actual: "torch.Tensor", expected: "torch.Tensor", tolerance: Tolerance) -> Comparison:
    """Compare two tensors on one device, all elements, with at most 256 MB of scratch.

    Tensors that are not contiguous are copied. Different shapes and dtypes are findings, not errors.
    """
    for kind, got, want in (
        ("shape", tuple(actual.shape), tuple(expected.shape)),
        ("dtype", str(actual.dtype), str(expected.dtype)),
    ):
        if got != want:
            return Comparison(kind, worst=[{"found": f"{got} instead of {want}"}])
    if expected.numel() == 0:
        return Comparison("empty")
    flat = actual.contiguous().view(-1), expected.contiguous().view(-1)
    result = _Floating(*flat, tolerance).run() if expected.dtype.is_floating_point else _exact(*flat)
    for item in result.worst:
        item["index"] = unravel(item["index"], tuple(expected.shape))
    return result


def unravel(index: int, shape: tuple[int, ...]) -> list[int]:
    """Convert a flat row-major index to an index per axis."""
    digits = []
    for size in reversed(shape):
        index, digit = divmod(index, size)
        digits.append(digit)
    return digits[::-1]


def _exact(actual: "torch.Tensor", expected: "torch.Tensor") -> Comparison:
    import torch

    result = Comparison("pass", elements=expected.numel(), max_abs_error=0.0, tolerance_used=0.0)
    size = CHUNK[expected.device.type]
    for start in range(0, expected.numel(), 16 * size):
        stop = min(start + 16 * size, expected.numel())
        if not torch.equal(actual[start:stop], expected[start:stop]):
            for inner in range(start, stop, size):
                _count_wrong(result, inner, actual[inner : inner + size], expected[inner : inner + size])
    if result.mismatched:
        result.status, result.tolerance_used = "mismatch", 1.0
    return result


def _count_wrong(result: Comparison, start: int, got: "torch.Tensor", want: "torch.Tensor") -> None:
    wrong = got != want
    result.mismatched += int(wrong.sum())
    for position in wrong.nonzero().view(-1)[: WORST_KEPT - len(result.worst)].tolist():
        result.worst.append(
            {"index": start + position, "actual": got[position].item(), "expected": want[position].item()}
        )
    largest = got.double().sub_(want.double()).abs_().max().item()
    result.max_abs_error = max(result.max_abs_error, largest)


class _Floating:
    """Compares a floating pair in one pass; the arithmetic is in place, in two preallocated buffers.

    Narrow formats are compared in float32, which holds their values exactly; float32 is compared in float64.
    """

    def __init__(self, actual: "torch.Tensor", expected: "torch.Tensor", tolerance: Tolerance):
        import torch

        self.actual, self.expected, self.tolerance = actual, expected, tolerance
        self.size = min(CHUNK[expected.device.type], expected.numel())
        working = torch.float64 if expected.dtype in (torch.float32, torch.float64) else torch.float32
        self.error = torch.empty(self.size, dtype=working, device=expected.device)
        self.bound = torch.empty_like(self.error)
        # A bound of 0 (atol 0, reference 0) would make an error of 0 undefined; the smallest normal number does not.
        self.atol = torch.tensor(max(tolerance.atol, torch.finfo(working).tiny), dtype=working, device=expected.device)
        self.result = Comparison("pass", elements=expected.numel(), max_abs_error=0.0, tolerance_used=0.0)
        self.error_squares = self.reference_squares = 0.0

    def run(self) -> Comparison:
        for start in range(0, self.expected.numel(), self.size):
            self._chunk(start)
        result = self.result
        if result.non_finite:
            result.status, result.max_abs_error, result.tolerance_used = "non_finite", None, None
            result.mismatched = result.non_finite
            return result
        if self.reference_squares and math.isfinite(self.error_squares + self.reference_squares):
            result.relative_rms = math.sqrt(self.error_squares / self.reference_squares)
        required = self.tolerance.required_matched_ratio
        if result.matched_ratio < (1.0 if required is None else required):
            result.status = "mismatch"
        return result

    def _chunk(self, start: int) -> None:
        got, want = self.actual[start : start + self.size], self.expected[start : start + self.size]
        error, bound = self.error[: want.numel()], self.bound[: want.numel()]
        error.copy_(got)
        bound.copy_(want)
        error.sub_(bound)
        # inf or NaN on either side makes the difference non-finite, so one maximum finds them all. The
        # difference of two huge finite numbers may overflow, too: that is an ordinary mismatch.
        largest = error.abs_().max().item()
        if not math.isfinite(largest):
            self._count_non_finite(start, got, want)
        if self.result.non_finite:
            return
        self.result.max_abs_error = max(self.result.max_abs_error or 0.0, _capped(largest))
        self.error_squares += error.dot(error).item()
        self.reference_squares += bound.dot(bound).item()
        self._apply_rule(start, got, want, error, bound)

    def _apply_rule(self, start: int, got: Any, want: Any, error: Any, bound: Any) -> None:
        import torch

        tolerance = self.tolerance
        bound.abs_()
        if tolerance.comparison == "absolute_plus_relative":
            torch.add(self.atol, bound, alpha=tolerance.rtol, out=bound)
        else:
            bound.add_(RELATIVE_FLOOR).mul_(tolerance.rtol).clamp_(min=self.atol)
        used = error.div_(bound)
        worst = _capped(used.max().item())
        if not worst <= 1.0:
            self.result.mismatched += used.numel() - int((used <= 1.0).sum())
        full = len(self.result.worst) == WORST_KEPT
        if worst > (self.result.worst[-1]["tolerance_used"] if full else 0.0):
            self._keep_worst(start, got, want, used)
        self.result.tolerance_used = max(self.result.tolerance_used or 0.0, worst)

    def _keep_worst(self, start: int, got: Any, want: Any, used: Any) -> None:
        values, positions = used.topk(min(WORST_KEPT, used.numel()))
        found = [
            {
                "index": start + position,
                "actual": got[position].item(),
                "expected": want[position].item(),
                "tolerance_used": _capped(value),
            }
            for value, position in zip(values.tolist(), positions.tolist())
            if value > 0
        ]
        merged = sorted(self.result.worst + found, key=lambda item: (-item["tolerance_used"], item["index"]))
        self.result.worst = merged[:WORST_KEPT]

    def _count_non_finite(self, start: int, got: Any, want: Any) -> None:
        bad = ~(_widened(got).isfinite() & _widened(want).isfinite())
        if bad.any() and not self.result.non_finite:
            self.result.worst = []
        self.result.non_finite += int(bad.sum())
        for position in bad.nonzero().view(-1)[: WORST_KEPT - len(self.result.worst)].tolist():
            self.result.worst.append(
                {"index": start + position, "actual": str(got[position].item()), "expected": str(want[position].item())}
            )


def _widened(values: "torch.Tensor") -> "torch.Tensor":
    """Widen FP8, which has no arithmetic, to float32; other formats need no copy."""
    return values.float() if values.element_size() == 1 else values


def _capped(value: float) -> float:
    """Replace infinity and NaN, which JSON cannot hold, by the largest number."""
    return value if math.isfinite(value) else sys.float_info.max
