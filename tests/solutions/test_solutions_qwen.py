"""Test solutions of the gated delta, sparse attention and index definitions.

Kernels run in Triton's interpreter, adapters on stand-ins for the libraries; engine calls are checked against
its source.
"""

import math

import pytest
import torch

from helpers import library_stand_ins
from helpers.engine_source import require_known_calls
from helpers.qwen_tools import noise, page_table
from helpers.solution_loader import REPOSITORY, load_solution, solution_file
from inference_kernels.core.compare import compare
from inference_kernels.core.tasks import read_task
from references.test_gdn import DECODE, PREFILL
from references.test_gdn import make_inputs as gdn_inputs
from references.test_sparse_gqa import NAME as ATTENTION
from references.test_sparse_gqa import make_inputs as attention_inputs
from references.test_sparse_gqa import published_inputs
from references.test_sparse_gqa import select as select_blocks
from references.test_sparse_index import NAME as INDEX
from references.test_sparse_index import make_inputs as index_inputs
from references.test_sparse_index import published_rows

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value) encountered")
SOLUTIONS = sorted(
    path.stem
    for family in ("gdn", "sparse_gqa", "sparse_index")
    for path in (REPOSITORY / "solutions" / family).glob("*.json")
)


def kinds(definition: str) -> list[str]:
    return [name.removesuffix(f"_{definition}") for name in SOLUTIONS if name.endswith(definition)]


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    library_stand_ins.install(monkeypatch)


def check(kind: str, definition: str, reference, inputs, changed=None) -> None:
    """Require a result within the task's tolerance, unchanged inputs, and a launch that follows changed inputs."""
    tolerance = read_task(REPOSITORY, definition).tolerance
    launch = load_solution(f"{kind}_{definition}").prepare(*inputs)
    launch()
    if changed is not None:
        inputs[0].copy_(changed)
    kept = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    actual, expected = launch(), reference(definition)(*inputs)
    if isinstance(expected, torch.Tensor):
        actual, expected = (actual,), (expected,)
    for got, want in zip(actual, expected, strict=True):
        result = compare(got, want, tolerance)
        assert result.passed and got.is_contiguous(), result.describe()
    for value, before in zip(inputs, kept):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", kinds(DECODE))
def test_gdn_decode(kind, reference):
    inputs = gdn_inputs(DECODE, [3], seed=1)
    check(kind, DECODE, reference, inputs, changed=inputs[0].flip(0))
    check(kind, DECODE, reference, (*inputs[:3], None, *inputs[4:-1], 0.0))


@pytest.mark.parametrize("kind", kinds(PREFILL))
def test_gdn_prefill(kind, reference):
    inputs = gdn_inputs(PREFILL, [3, 0, 66], seed=2)
    check(kind, PREFILL, reference, inputs)
    inputs = gdn_inputs(PREFILL, [2], seed=3)
    check(kind, PREFILL, reference, (*inputs[:3], None, *inputs[4:-1], None), changed=inputs[0].flip(0))


@pytest.mark.parametrize("kind", ["triton", "triton_split"])
@pytest.mark.parametrize("share, decay", [(0.5, 1e-4), (1.0, 1.0)])
def test_gdn_prefill_is_close_to_float32(kind, share, decay, reference):
    """Ask far more than the contest, where the keys have `share` in common, and with extreme decays."""
    q, k, v, state, A_log, a, dt_bias, *rest = gdn_inputs(PREFILL, [67], seed=3)
    k = torch.nn.functional.normalize((1 - share) * k.float() + share * k[:1].float(), dim=-1).bfloat16()
    dt_bias = torch.full_like(dt_bias, math.log(math.expm1(-math.log(decay))) if decay < 1 else -30.0)
    inputs = (q, k, v, state, torch.zeros_like(A_log), a * 0, dt_bias, *rest)
    actual, expected = load_solution(f"{kind}_{PREFILL}").run(*inputs), reference(PREFILL)(*inputs)
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(actual[0].float(), expected[0].float(), rtol=0.016, atol=1e-4)


@pytest.mark.parametrize("kind", kinds(ATTENTION))
def test_sparse_attention(kind, reference):
    """Attend rows without a tail, with nothing but a tail, with 512 blocks; three sequences interleaved."""
    rows = [(0, 2302), (1, 6), (2, 0), (1, 7)]
    inputs = published_inputs(rows, [2304, 9, 1], seed=1, share=0.95)
    check(kind, ATTENTION, reference, inputs, changed=inputs[0].flip(0))


@pytest.mark.parametrize("kind", kinds(ATTENTION))
def test_sparse_attention_of_one_row_a_sequence(kind, reference):
    rows = [(1, 69), (0, 130)]
    selected = select_blocks(rows, 512, 5, 0.5)
    check(kind, ATTENTION, reference, attention_inputs(rows, [131, 70], 12, 4, selected))


def test_sparse_attention_unsplit_holes_and_large_values(reference, monkeypatch):
    """Attend many rows unsplit, a hole among the ids, and few keys with values of deviation 5."""
    rows = [(0, position) for position in range(4, 40, 5)]
    inputs = list(attention_inputs(rows, [40], 16, 7, select_blocks(rows, 512, 7, 1.0)))
    inputs[2] = inputs[2] * 5
    inputs[3] = inputs[3].roll(1, dims=1)
    solution = load_solution(f"triton_{ATTENTION}")
    assert solution.split_sizes(len(rows) * 2, 2052)[0] > 1
    monkeypatch.setattr(solution, "WANTED_PROGRAMS", 1)
    output, expected = solution.run(*inputs), reference(ATTENTION)(*inputs)
    assert compare(output, expected, read_task(REPOSITORY, ATTENTION).tolerance).passed


@pytest.mark.parametrize("rows, splits", [(1, 33), (2, 33), (16, 9), (132, 1), (4096, 1)])
def test_splits_of_a_row(rows, splits):
    found, slots = load_solution(f"triton_{ATTENTION}").split_sizes(2 * rows, 2052)
    assert found <= splits and found * slots >= 2052 > (found - 1) * slots


@pytest.mark.parametrize("kind", kinds(INDEX))
def test_index_selection(kind, reference):
    """Select from under, exactly and over 512 visible blocks of three interleaved sequences, in pages of 16."""
    rows, lengths = published_rows()
    inputs = index_inputs(rows, lengths, 16, seed=1)
    check(kind, INDEX, reference, inputs, changed=inputs[0].flip(0))


@pytest.mark.parametrize("kind", kinds(INDEX))
def test_index_selection_of_one_row_a_sequence(kind, reference):
    check(kind, INDEX, reference, index_inputs([(1, 2899), (0, 9)], [11, 2903], 8, seed=2))


@pytest.mark.parametrize("values", ["equal", "integers", "zero"])
def test_index_ties_go_to_the_lower_ids(values, reference):
    """Select among more equal scores than fit a program: threshold and compaction walk the list in memory."""
    inputs = index_inputs([(0, 10001)], [10002], 16, seed=3, values=1)
    if values == "equal":
        inputs[1][:] = inputs[1][0, 0].nan_to_num()
    if values == "zero":
        inputs[0].zero_()
    check("triton", INDEX, reference, inputs)


@pytest.mark.parametrize("margin", [2.0**-16, 0.05])
def test_index_scores_near_the_threshold_are_exact(margin, reference, monkeypatch):
    """Widen the margin: more blocks are scored again, list and threshold change, the ids do not."""
    inputs = index_inputs([(0, 14003), (0, 13000)] * 5, [14004], 16, seed=4)
    solution = load_solution(f"triton_{INDEX}")
    monkeypatch.setattr(solution, "MARGIN", margin)
    assert torch.equal(solution.run(*inputs), reference(INDEX)(*inputs))


def test_index_near_tie_inside_float32(reference):
    """Decide by float64 where float32 sums differ by rounding; equal scores go by id."""
    table, pages = page_table([600], 16, 5)
    q, keys = torch.zeros(1, 4, 128), noise(6, 1, 1, 128).expand(pages, 16, 128).clone()
    q[:] = noise(7, 1, 4, 128)
    keys[..., 0] += 2.0**-9 * torch.randint(0, 3, keys.shape[:-1], generator=torch.Generator().manual_seed(8))
    inputs = (
        q.bfloat16(),
        keys.bfloat16(),
        table,
        torch.tensor([2400], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([2399], dtype=torch.int32),
    )
    check("triton", INDEX, reference, inputs)


@pytest.mark.parametrize("name", [name for name in SOLUTIONS if name.startswith(("sglang_", "tilelang_"))])
def test_engine_functions_exist_and_take_these_arguments(engine, name):
    require_known_calls(engine, solution_file(name))
