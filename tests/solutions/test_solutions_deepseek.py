"""Test V4.1 attention and router solutions: kernels in Triton's interpreter, engine calls by the source."""

import ast
import json

import pytest
import torch

from helpers.engine_source import require_known_calls
from helpers.reference_checks import normal
from helpers.solution_loader import REPOSITORY, load_solution, solution_file
from references.test_expert_router import assert_routed, routed
from references.test_expert_router import real_case as router_case
from references.test_mixed_mla import SCALE, int32
from references.test_mixed_mla import real_case as decode_case

SPARSE = "sparse_mla_prefill_bf16_h64_d512_s"
MIXED = "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512"
ROUTER = "expert_router_bf16_h5120_e384_top6"
INF = float("inf")
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # an infinite sink
WRAPPERS = [f"sglang_{name}" for name in (f"{SPARSE}128", f"{SPARSE}640", MIXED, ROUTER)]


def assert_within_task(actual: torch.Tensor, expected: torch.Tensor, definition: str) -> None:
    """Require the same dtype, contiguous rows, and every element within the task's tolerance."""
    tolerance = json.loads((REPOSITORY / "tasks" / f"{definition}.json").read_text())["tolerance"]
    assert actual.dtype == expected.dtype and actual.is_contiguous()
    bounds = {name: tolerance[name] for name in ("rtol", "atol")}
    torch.testing.assert_close(actual.float(), expected.float(), **bounds)


def sparse_inputs(rows: int, slots: int, T: int = 150):
    """Make rows of every length, holes, an index past the end, a row of holes only, and sinks of all kinds."""
    generator = torch.Generator().manual_seed(slots)
    indices = torch.randint(T, (rows, 1, slots), generator=generator)
    indices[torch.rand(rows, 1, slots, generator=generator) < 0.1] = -1
    indices[0, 0, 3], indices[1:2] = T, -1
    length = int32([slots, slots, 1, 0, 65, slots - 1][:rows])
    sink = normal(64, seed=5).float()
    sink[:3] = torch.tensor([-INF, INF, 3e4])
    return (normal(rows, 64, 512, seed=1), normal(T, 1, 512, seed=2), indices.int(), length, sink, SCALE)


@pytest.mark.parametrize("kind", ["triton", "torch"])
@pytest.mark.parametrize("rows, slots", [(6, 128), (1, 640)])
def test_sparse_prefill(kind, rows, slots, reference):
    inputs = sparse_inputs(rows, slots)
    output = load_solution(f"{kind}_{SPARSE}{slots}").run(*inputs)
    assert_within_task(output, reference(f"{SPARSE}{slots}")(*inputs), f"{SPARSE}{slots}")


@pytest.mark.parametrize("kind", ["triton", "torch"])
def test_sparse_prefill_of_an_empty_workspace(kind):
    q, kv, indices, *rest = sparse_inputs(1, 128)
    output = load_solution(f"{kind}_{SPARSE}128").run(q, kv[:0], torch.full_like(indices, -1), *rest)
    assert output.shape == q.shape and not output.any()


@pytest.mark.parametrize("kind, programs", [("triton", 6), ("torch", None)])
def test_mixed_decode(kind, programs, reference, monkeypatch):
    """Split a token into two shares; positions 700, 40 and 0, with an empty slot inside the scanned ones."""
    inputs, _ = decode_case()
    solution = load_solution(f"{kind}_{MIXED}")
    if programs:
        monkeypatch.setattr(solution, "PROGRAMS", programs)
    assert_within_task(solution.run(*inputs, SCALE), reference(MIXED)(*inputs, SCALE), MIXED)


@pytest.mark.parametrize("kind", ["triton", "torch"])
def test_mixed_decode_without_a_valid_slot(kind, reference, monkeypatch):
    """Expect zeros without any compressed page and for a token of empty slots only."""
    (q, kv8, kv4, indices8, indices4, *_, sink), _ = decode_case()
    empty = torch.full_like(indices4[:2], -1)
    window = indices8[:2].clone()
    window[1] = -1
    inputs = (q[:2], kv8, kv4[:0], window, empty, int32([70, 1]), int32([1, 1]), sink, SCALE)
    solution = load_solution(f"{kind}_{MIXED}")
    monkeypatch.setattr(solution, "PROGRAMS", 1, raising=False)
    output = solution.run(*inputs)
    assert_within_task(output, reference(MIXED)(*inputs), MIXED)
    assert not output[1].any()


@pytest.mark.parametrize("tokens, share", [(1, 1), (2, 1), (13, 1), (16, 2), (64, 5), (132, 10), (500, 10)])
def test_shares_of_a_token_are_even(tokens, share):
    """Compare `share`: the most tiles of 64 slots per program, of the ten a token can have."""
    splits = load_solution(f"triton_{MIXED}").splits_for(tokens, 640)
    assert -(-10 // splits) == share and tokens * splits <= max(tokens, 132)


def test_hopper_gather_is_exact(reference):
    """Compare the sparse prefill's reference on the gathered rows with the reference on the pages."""
    (q, *caches, sink), _ = decode_case()
    rows, places, lengths = load_solution(f"flashmla_{MIXED}").prepare_gather(*caches)()
    for token, count in enumerate(lengths.tolist()):
        assert (places[token, 0, count:] == -1).all()
    output = reference(f"{SPARSE}640")(q, rows, places, lengths, sink, SCALE)
    torch.testing.assert_close(output, reference(MIXED)(q, *caches, sink, SCALE), rtol=2**-7, atol=1e-5)


def tied_router_inputs(rows: int):
    """Make few distinct experts and biases with exact sums, so that most ranks tie."""
    pick = torch.randint(3, (3, 384), generator=torch.Generator().manual_seed(7))
    hidden, experts = torch.zeros(rows, 5120).bfloat16(), torch.zeros(3, 5120).bfloat16()
    hidden[:, :4], experts[:, :4] = (normal(rows, 4) * 4).round() / 4, (normal(3, 4, seed=1) * 4).round() / 4
    bias, bias_vl = (torch.tensor([0.25, -0.5, 0.75])[choice] for choice in pick[1:])
    return hidden, experts[pick[0]], bias, bias_vl, torch.arange(rows) % 3 == 1


@pytest.mark.parametrize("kind", ["triton", "torch"])
def test_router(kind):
    inputs, expected = router_case()
    assert_routed(load_solution(f"{kind}_{ROUTER}").run(*inputs, 1.5), expected)


@pytest.mark.parametrize("kind", ["triton", "torch"])
def test_router_on_ties(kind, monkeypatch):
    """Route exact ties, NaN and -0 in the biases, and a last tile of rows that is not full."""
    solution, inputs = load_solution(f"{kind}_{ROUTER}"), tied_router_inputs(17)
    monkeypatch.setattr(solution, "CONFIGURATIONS", ((1, 16, 128, 256, 2, 4, 2),), raising=False)
    assert_routed(solution.run(*inputs, 1.0), routed(*inputs, 1.0))
    inputs[2][7], inputs[3][300] = float("nan"), -0.0
    assert_routed(solution.run(*inputs, 1.0), routed(*inputs, 1.0))


def test_configurations_divide_the_router():
    table = load_solution(f"triton_{ROUTER}").CONFIGURATIONS
    assert [row[0] for row in table] == sorted(row[0] for row in table)
    for _, _, block_n, block_k, splits, *_ in table:
        assert 384 % block_n == 0 and 5120 % (block_k * splits) == 0


def test_the_gate_is_the_same_in_both_router_solutions():
    first, second = (source_of(f"{kind}_{ROUTER}") for kind in ("triton", "cublas"))
    for name in ("_log1p", "_gate"):
        assert ast.dump(function(first, name)) == ast.dump(function(second, name))


def test_ordering_of_the_engine_experts():
    solution = load_solution(f"sglang_{ROUTER}")
    best = torch.stack([torch.randperm(384)[:6] for _ in range(40)]).int()
    weights, ids, ordered = torch.rand(40, 6), torch.empty_like(best), torch.empty(40, 6)
    solution._order[(2,)](best, weights, ids, ordered, 40, 6, solution.ROWS)
    expected, place = best.sort(dim=1)
    assert torch.equal(ids, expected) and torch.equal(ordered, weights.gather(1, place))


def source_of(name: str) -> ast.Module:
    return ast.parse(solution_file(name).read_text())


def function(tree: ast.Module, name: str) -> ast.FunctionDef:
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)


@pytest.mark.parametrize("name", WRAPPERS)
def test_engine_functions_exist_and_take_these_arguments(engine, name):
    require_known_calls(engine, solution_file(name))
