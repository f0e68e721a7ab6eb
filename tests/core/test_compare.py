"""The comparator: rules at their boundary, non-finite values, exact types, every element of every chunk."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.core import compare as module
from inference_kernels.core.compare import RULES, Tolerance, compare

SUM, EITHER = RULES
BF16 = Tolerance(0.005, 0.016)
INF, NAN = math.inf, math.nan
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def pair(actual: list, expected: list, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(actual).to(dtype), torch.tensor(expected).to(dtype)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", 4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_sum_rule_at_its_exact_boundary(dtype, sign):
    """atol 0.25, rtol 0.5, reference 2: the bound is 1.25, which every format holds exactly."""
    tolerance = Tolerance(0.25, 0.5)
    result = compare(*pair([2.0 + sign * 1.25], [2.0], dtype), tolerance)
    assert result.passed and result.tolerance_used == 1.0 and result.max_abs_error == 1.25
    step = torch.finfo(dtype).eps * 4
    assert compare(*pair([2.0 + sign * (1.25 + step)], [2.0], dtype), tolerance).status == "mismatch"


@pytest.mark.parametrize(
    "reference,error,passed",
    [
        (2.0, 0.25, True),
        (2.0, 0.3, True),
        (2.0, 1.0, True),
        (2.0, 1.0 + 2**-20, False),
        (0.125, 0.25, True),
        (0.125, 0.25 + 2**-20, False),
        (0.0, 0.25, True),
        (0.0, 0.26, False),
    ],
)
def test_the_either_rule_at_its_exact_boundary(reference, error, passed):
    """atol 0.25 or rtol 0.5 of |reference| + 1e-8: the larger of the two bounds counts, not their sum."""
    tolerance = Tolerance(0.25, 0.5, comparison=EITHER)
    for sign in (1, -1):
        assert compare(*pair([reference + sign * error], [reference]), tolerance).passed is passed


def test_the_sum_rule_is_the_wider_one():
    actual, expected = pair([2.0 + 1.1], [2.0])
    assert compare(actual, expected, Tolerance(0.25, 0.5)).passed
    assert not compare(actual, expected, Tolerance(0.25, 0.5, comparison=EITHER)).passed


def test_the_either_rule_has_a_floor_for_references_near_zero():
    """|x - ref| / (|ref| + 1e-8) <= rtol: at a reference of 0 the bound is rtol * 1e-8."""
    tolerance = Tolerance(0.0, 0.5, comparison=EITHER)
    assert compare(*pair([4.9e-9], [0.0]), tolerance).passed
    assert not compare(*pair([5.1e-9], [0.0]), tolerance).passed


def test_elements_at_the_boundary_are_not_counted_with_those_beyond():
    result = compare(*pair([3.25, 3.25, 4.0], [2.0, 2.0, 2.0]), Tolerance(0.25, 0.5))
    assert (result.status, result.mismatched) == ("mismatch", 1)


def test_zero_tolerance_is_exact():
    for rule in RULES:
        tolerance = Tolerance(0.0, 0.0, comparison=rule)
        assert compare(*pair([0.0, -0.0, 5.0], [0.0, 0.0, 5.0]), tolerance).passed
        assert not compare(*pair([0.0, 1e-30], [0.0, 0.0]), tolerance).passed


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2])
@pytest.mark.parametrize(
    "actual,expected",
    [
        (-INF, -INF),
        (INF, INF),
        (NAN, NAN),
        (0, -INF),
        (0, INF),
        (1, NAN),
        (NAN, 1),
        (INF, 1),
        (-INF, 1),
        (INF, -INF),
        (NAN, INF),
    ],
)
@pytest.mark.parametrize(
    "tolerance", [BF16, Tolerance(1e30, 1e30), Tolerance(0.1, 0.1, 0.0001), Tolerance(0.1, 0.1, 0.5, EITHER)]
)
def test_no_pair_with_a_non_finite_value_ever_passes(dtype, actual, expected, tolerance):
    result = compare(*pair([1.0] * 9 + [actual], [1.0] * 9 + [expected], dtype), tolerance)
    assert (result.status, result.non_finite, result.passed) == ("non_finite", 1, False)
    assert "non-finite" in result.describe() and "[9]" in result.describe()
    json.dumps(result.to_json(), allow_nan=False)


def test_non_finite_in_one_chunk_and_ordinary_errors_in_the_others(small_chunks):
    for position in (0, 5, 11):
        actual = torch.full((12,), 3.0)
        actual[position] = NAN
        result = compare(actual, torch.ones(12), BF16)
        assert (result.status, result.non_finite, result.mismatched) == ("non_finite", 1, 1)
        assert result.worst == [{"index": [position], "actual": "nan", "expected": "1.0"}]
        assert result.max_abs_error is None and result.tolerance_used is None


def test_many_non_finite_values_are_counted_and_five_shown(small_chunks):
    result = compare(torch.full((3, 7), INF), torch.zeros(3, 7), BF16)
    assert result.non_finite == 21 and [item["index"] for item in result.worst] == [[0, index] for index in range(5)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_finite_values_whose_difference_overflows_are_an_ordinary_mismatch(dtype):
    largest = torch.finfo(dtype).max
    result = compare(*pair([largest, 1.0], [-largest, 1.0], dtype), BF16)
    assert (result.status, result.mismatched, result.non_finite) == ("mismatch", 1, 0)
    assert result.worst[0]["index"] == [0]
    json.dumps(result.to_json(), allow_nan=False)


def test_huge_and_tiny_values_give_records_that_json_can_hold():
    for actual, expected in (([1e30], [1.0]), ([1e5], [0.0]), ([1e-30], [0.0]), ([1e25], [1e25]), ([3e38], [1e-38])):
        for dtype in (torch.float32, torch.bfloat16):
            for tolerance in (BF16, Tolerance(0.0, 0.0), Tolerance(0.0, 0.0, comparison=EITHER)):
                json.dumps(compare(*pair(actual, expected, dtype), tolerance).to_json(), allow_nan=False)


@pytest.mark.parametrize("bad,passed", [(0, True), (1, True), (2, False)])
def test_a_ratio_counts_to_the_element(bad, passed):
    actual = torch.zeros(10_000)
    actual[:bad] = 1.0
    result = compare(actual, torch.zeros(10_000), Tolerance(0.1, 0.1, 0.9999))
    assert result.passed is passed and result.mismatched == bad and len(result.worst) == bad


def test_without_a_ratio_one_bad_element_of_ten_million_fails():
    actual = torch.zeros(10_000_000, dtype=torch.bfloat16)
    expected = actual.clone()
    actual[9_999_999] = 1.0
    result = compare(actual, expected, BF16)
    assert (result.status, result.mismatched) == ("mismatch", 1)
    assert result.describe() == "1 of 10000000 elements beyond the bound, worst at [9999999]: 1.0 for 0.0"


def test_one_nan_of_ten_thousand_is_not_within_the_ratio():
    actual = torch.zeros(10_000)
    actual[77] = NAN
    assert compare(actual, torch.zeros(10_000), Tolerance(0.1, 0.1, 0.9999)).status == "non_finite"


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_are_exact_whatever_the_tolerance(dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    loose = Tolerance(1e9, 1e9, 0.5)
    values = torch.tensor([low, -1, 0, 1, high], dtype=dtype)
    assert compare(values, values.clone(), loose).passed
    other = values.clone()
    other[4] -= 1
    result = compare(other, values, loose)
    assert (result.status, result.mismatched, result.tolerance_used) == ("mismatch", 1, 1.0)
    assert result.worst == [{"index": [4], "actual": high - 1, "expected": high}]


def test_integers_beyond_the_precision_of_floats():
    for value in (2**24 + 1, 2**53 + 1, 2**62 + 1):
        assert not compare(torch.tensor([value - 1]), torch.tensor([value]), BF16).passed


def test_bools_are_exact():
    assert compare(torch.tensor([True, False]), torch.tensor([True, False]), BF16).passed
    result = compare(torch.tensor([True, True]), torch.tensor([True, False]), Tolerance(9.0, 9.0))
    assert (result.status, result.mismatched, result.max_abs_error) == ("mismatch", 1, 1.0)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_nothing_compared_is_not_a_pass(shape, dtype):
    result = compare(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), BF16)
    assert (result.status, result.passed, result.matched_ratio) == ("empty", False, 0.0)
    assert result.describe() == "nothing to compare"


@pytest.mark.parametrize(
    "actual,expected,status",
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "shape"),
        (torch.zeros(6), torch.zeros(2, 3), "shape"),
        (torch.zeros(1), torch.zeros(()), "shape"),
        (torch.zeros(0), torch.zeros(1), "shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), "dtype"),
        (torch.zeros(2).int(), torch.zeros(2).long(), "dtype"),
    ],
)
def test_other_shapes_and_dtypes_are_never_broadcast_or_cast(actual, expected, status):
    result = compare(actual, expected, BF16)
    assert result.status == status and not result.passed
    assert result.describe().startswith(f"{status}: ") and "instead of" in result.describe()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_pairs(dtype):
    expected = torch.tensor([1.0, 2.0, -4.0, 0.5]).to(dtype)
    assert compare(expected.clone(), expected, Tolerance(0.0, 0.0)).passed
    actual = torch.tensor([1.25, 2.0, -4.0, 0.5]).to(dtype)
    assert compare(actual, expected, Tolerance(0.0, 0.25)).passed
    assert compare(actual, expected, Tolerance(0.0, 0.125)).mismatched == 1


def test_fp8_values_that_are_not_finite():
    values = torch.tensor([0x7F, 0x00], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert compare(values, values.clone(), BF16).status == "non_finite"


def test_the_worst_elements_of_a_3_d_tensor_in_order():
    expected = torch.zeros(4, 5, 6)
    actual = expected.clone()
    errors = {(0, 0, 0): 1.0, (3, 4, 5): -6.0, (1, 2, 3): 5.0, (2, 0, 1): -4.0, (0, 4, 2): 3.0, (3, 0, 0): 2.0}
    for index, error in errors.items():
        actual[index] = error
    result = compare(actual, expected, Tolerance(0.5, 0.0))
    assert [item["index"] for item in result.worst] == [[3, 4, 5], [1, 2, 3], [2, 0, 1], [0, 4, 2], [3, 0, 0]]
    assert [item["actual"] for item in result.worst] == [-6.0, 5.0, -4.0, 3.0, 2.0]
    assert [item["tolerance_used"] for item in result.worst] == [12.0, 10.0, 8.0, 6.0, 4.0]
    assert (result.mismatched, result.max_abs_error, result.tolerance_used) == (6, 6.0, 12.0)


def test_the_nearest_elements_of_a_pass_are_kept_too():
    result = compare(*pair([1.0, 1.01, 1.0], [1.0, 1.0, 1.0]), BF16)
    assert result.passed and [item["index"] for item in result.worst] == [[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("position", [0, 3, 4, 7, 8, 63, 64, 65, 66])
def test_an_error_at_any_edge_of_a_chunk_is_found(small_chunks, dtype, position):
    """Chunks have 4 elements, 64 for exact types; 67 elements end in the middle of one."""
    expected = torch.zeros(67).to(dtype)
    actual = expected.clone()
    actual[position] = 1
    result = compare(actual, expected, BF16)
    assert (result.status, result.mismatched, result.worst[0]["index"]) == ("mismatch", 1, [position])


def test_figures_do_not_depend_on_the_chunks(monkeypatch):
    actual = (torch.arange(1000) * 37 % 101).float() / 7
    expected = actual + (torch.arange(1000) * 53 % 89 - 44).float() / 1000
    results = []
    for size in (1000, 7, 1):
        monkeypatch.setitem(module.CHUNK, "cpu", size)
        results.append(compare(actual, expected, Tolerance(0.01, 0.001)).to_json())
    for result in results[1:]:
        assert result.pop("relative_rms") == pytest.approx(results[0]["relative_rms"], rel=1e-9)
        assert result == {key: value for key, value in results[0].items() if key != "relative_rms"}


VALUES = st.floats(-100, 100, width=32) | st.sampled_from([0.0, -0.0, 1.0, 0.005, 2.0**-120, 3e38, -3e38])


@given(
    st.lists(
        st.tuples(VALUES, VALUES | st.none(), st.sampled_from([0.0, 1e-3, -0.004, 0.016])), min_size=1, max_size=40
    ),
    st.sampled_from([(0.005, 0.016), (2e-5, 1e-4), (0.01, 0.01), (0.0, 0.0)]),
    st.sampled_from(RULES),
    st.sampled_from([None, 0.9999, 0.5]),
    st.sampled_from([3, 1000]),
)
@settings(max_examples=150, deadline=None)
def test_a_float64_numpy_oracle_agrees(rows, bounds, rule, ratio, chunk):
    """Apply the rules in float64 to float32 data; elements within 1e-12 of their bound are left out."""
    expected = np.array([row[0] for row in rows], dtype=np.float32)
    with np.errstate(over="ignore"):
        actual = np.array([row[0] + row[2] if row[1] is None else row[1] for row in rows], dtype=np.float32)
    error, size = np.abs(actual.astype(np.float64) - expected), np.abs(expected.astype(np.float64))
    atol, rtol = bounds
    limit = atol + rtol * size if rule == SUM else np.maximum(atol, rtol * (size + 1e-8))
    clear = np.abs(error - limit) > 1e-12 * np.maximum(limit, 1e-300)
    actual, expected = (np.where(clear | (error == 0), values, 0.0).astype(np.float32) for values in (actual, expected))
    wrong = int((clear & (error > limit)).sum())
    module.CHUNK["cpu"], saved = chunk, module.CHUNK["cpu"]
    try:
        result = compare(torch.from_numpy(actual), torch.from_numpy(expected), Tolerance(atol, rtol, ratio, rule))
    finally:
        module.CHUNK["cpu"] = saved
    assert result.mismatched == wrong
    assert result.passed is ((len(rows) - wrong) / len(rows) >= (1.0 if ratio is None else ratio))


def test_views_are_compared_by_value():
    expected = torch.arange(12.0).reshape(3, 4)
    assert compare(expected.T.contiguous().T, expected, Tolerance(0.0, 0.0)).passed
    assert compare(torch.ones(()).expand(3, 4), torch.ones(3, 4), Tolerance(0.0, 0.0)).passed


def test_relative_rms():
    result = compare(*pair([3.3, 4.4], [3.0, 4.0]), Tolerance(1.0, 0.0))
    assert result.relative_rms == pytest.approx(0.1)
    assert compare(*pair([0.1], [0.0]), Tolerance(1.0, 0.0)).relative_rms is None


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import torch
from inference_kernels.core.compare import Tolerance, compare
elements, kind = int(sys.argv[2]), sys.argv[3]
dtype = getattr(torch, kind)
expected = torch.zeros(elements, dtype=dtype)
actual = torch.zeros(elements, dtype=dtype)
actual[elements - 1] = 1
compare(actual[:1000], expected[:1000], Tolerance(0.005, 0.016))
held = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (held + int(sys.argv[4]) * 2**20, resource.RLIM_INFINITY))
result = compare(actual, expected, Tolerance(0.005, 0.016))
assert result.mismatched == 1 and result.worst[0]["index"] == [elements - 1], result
full = compare(actual.fill_(1), expected, Tolerance(0.005, 0.016))
assert full.mismatched == elements, full
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its memory from /proc")
@pytest.mark.parametrize("kind,elements,allowed", [("bfloat16", 10**8, 200), ("int32", 2 * 10**7, 64)])
def test_scratch_is_bounded_for_large_tensors(kind, elements, allowed):
    """`allowed` MiB may be used beside the tensors; a widened copy of one tensor would be twice that."""
    scripts = Path(module.__file__).parents[2]
    arguments = [str(scripts), str(elements), kind, str(allowed)]
    done = subprocess.run([sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
