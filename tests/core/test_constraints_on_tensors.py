"""Constraints that read inputs: elementwise rules, reductions, gathers, and bounds against hostile ones."""

import pytest
import torch

from inference_kernels.core.constraints import check_constraint, evaluate, refusal
from inference_kernels.core.definitions import definition_files, read_definition
from inference_kernels.core.errors import ConstraintError

NAMES = {
    "N": 3,
    "pages": 4,
    "cu": torch.tensor([0, 2, 2, 7], dtype=torch.int32),
    "ids": torch.tensor([2, 0, -1]),
    "table": torch.tensor([[0, 1, 2], [3, 0, 1]], dtype=torch.int32),
    "row": torch.tensor([1, 0, 1], dtype=torch.int32),
    "mask": torch.tensor([True, False]),
    "real": torch.tensor([0.5, -1.0], dtype=torch.bfloat16),
    "fp8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "none": torch.zeros(0, dtype=torch.int32),
    "scalar": torch.tensor(5),
}


@pytest.mark.parametrize(
    "rule,truth",
    [
        ("cu[0] == 0", True),
        ("cu[-1] == 7", True),
        ("cu[-1] == N", False),
        ("len(cu) == N + 1", True),
        ("all(cu[1:] >= cu[:-1])", True),
        ("all(cu[1:] > cu[:-1])", False),
        ("any(cu[1:] == cu[:-1])", True),
        ("all((ids >= -1) & (ids < N))", True),
        ("all((ids >= 0) & (ids < N))", False),
        ("all((ids >= 0) | (ids == -1))", True),
        ("all(~(ids > 2))", True),
        ("(ids < 3).all()", True),
        ("(ids == 0).any()", True),
        ("ids.max() < N", True),
        ("min(ids) == -1", True),
        ("max(ids) == 2 and sum(ids) == 1", True),
        ("ids.sum() == 1", True),
        ("sum(ids == 0) == 1", True),
        ("all(cu[:-1] <= arange(N) * 3)", True),
        ("all(arange(3) < N)", True),
        ("-1 <= min(ids) <= max(ids) < N", True),
        ("all(0 <= table < pages)", True),
        ("all(0 <= table <= 2)", False),
        ("table[0, 2] == 2", True),
        ("table[1, -1] == 1", True),
        ("all(table[:, 0] >= 0)", True),
        ("all(table[:, ::2] != 9)", True),
        ("all(ids[:, None] < arange(4))", False),
        ("all((ids[:, None] == -1) | (ids[:, None] < N + arange(2)))", True),
        ("all(table[row, row] >= 0)", True),
        ("all(table[row] < pages)", True),
        ("all(table[row, 0] == row * 3)", True),
        ("all(table[row[:, None], row] >= 0)", True),
        ("any(mask)", True),
        ("all(mask)", False),
        ("all(real >= -1) and any(real == 0.5)", True),
        ("abs(real).max() == 1.0", True),
        ("all(none > 5)", True),
        ("any(none > 5)", False),
        ("len(none) == 0", True),
        ("scalar == 5", True),
        ("all(ids % 2 <= 1)", True),
        ("all(cu // 2 * 2 + cu % 2 == cu)", True),
        ("all(cu + 1 > cu - 1)", True),
        ("len(fp8) == 2", True),
        ("all(-cu <= 0)", True),
    ],
)
def test_rules_over_inputs(rule, truth):
    assert refusal(rule) is None
    assert evaluate(rule, NAMES, "here") is truth


@pytest.mark.parametrize(
    "rule,reason",
    [
        ("ids >= 0", "ambiguous"),
        ("ids.any() and ids", "ambiguous"),
        ("ids[7] == 0", "out of bounds"),
        ("ids[0, 0] == 0", "too many"),
        ("ids[True] == 0", "must be an integer"),
        ("ids[0.5] == 0", "must be an integer"),
        ("all(ids[mask] > 0)", "must be an integer"),
        ("all(ids[real] > 0)", "must be an integer"),
        ("all(table[cu] >= 0)", "out of bounds for dimension 0 with size 2"),
        ("all(cu[::0] >= 0)", "zero"),
        ("all(cu[::-1] >= 0)", "greater than zero"),
        ("min(none) == 0", ""),
        ("none.max() == 0", ""),
        ("ids[-9:][0] > N < ids", "ambiguous"),
        ("all(cu > ids)", "must match"),
        ("len(scalar) == 1", "0-d"),
        ("all(real & 1)", ""),
        ("all(ids << 1)", "LShift"),
        ("ids.view(3)", "method view is not allowed"),
        ("ids.T == 1", "Attribute"),
        ("all(ids @ ids)", "MatMult"),
        ("cu[99 ** 40] == 0", ""),
        ("all(ids ** 2 >= 0)", "small integer powers"),
        ("all(none, none)", "ambiguous"),
        ("arange(ids)", "arange needs one axis"),
    ],
)
def test_rules_that_fail_on_tensors_give_the_reason(rule, reason):
    with pytest.raises(ConstraintError) as caught:
        evaluate(rule, NAMES, "here")
    assert reason in caught.value.found, caught.value.found


@pytest.mark.parametrize(
    "rule",
    [
        "all(long[:, None] < long)",
        "all(long[:, None] + arange(16777216) >= 0)",
        "all(long[long[:, None], long] >= 0)",
        "all((long[:, None, None] < long[:, None]) & (long >= 0))",
        "all(long[:, None] * long[None, :] >= 0)",
        "all(arange(100000)[:, None] < 5 < arange(100000))",
        "all(0 <= arange(100000)[:, None] < 5 < arange(100000))",
        "any(long[:, None] == 0 == long)",
    ],
)
def test_rules_that_would_take_the_memory_are_refused_before_they_do(rule):
    long = torch.zeros(1, dtype=torch.int64).expand(2**20)
    with pytest.raises(ConstraintError, match="a result of [0-9,]+ elements"):
        evaluate(rule, {"long": long}, "here")


def test_large_inputs_themselves_are_fine():
    assert evaluate("all(x >= 0) and all(x < x + 1)", {"x": torch.zeros(1, dtype=torch.int8).expand(2**16)}, "here")


def test_a_false_rule_shows_range_and_shape_of_what_it_read():
    for rule, shown in (
        ("all(ids >= 0)", "ids = tensor [3], min -1, max 2"),
        ("len(none) == 1", "none = tensor [0]"),
        ("len(fp8) == 3", "fp8 = tensor [2], min 1.0, max 2.0"),
        ("all(mask)", "mask = tensor [2], min False, max True"),
        ("any(real > N)", "N = 3, real = tensor [2], min -1.0, max 0.5"),
    ):
        with pytest.raises(ConstraintError) as caught:
            check_constraint(rule, NAMES, "here")
        assert caught.value.found == shown


def test_only_the_inputs_of_a_rule_are_loaded():
    loaded = []
    names = {"N": 3, "a": lambda: loaded.append("a") or torch.ones(3), "b": lambda: loaded.append("b") or torch.ones(3)}
    check_constraint("N == 3", names, "here")
    assert loaded == []
    check_constraint("all(b == 1)", names, "here")
    assert loaded == ["b"]


def test_every_rule_of_this_repository_is_in_the_language(repository):
    files = definition_files(repository) + definition_files(repository, "retired/definitions")
    refused = {
        (path.stem, rule): refusal(rule) for path in files for rule in read_definition(path).get("constraints") or []
    }
    assert refused and not {key: reason for key, reason in refused.items() if reason}
