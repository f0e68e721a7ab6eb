"""Test solutions of the dense and the grouped GEMM: kernels in Triton's interpreter, adapters around stand-ins."""

import ast
import contextlib
import sys
from types import ModuleType

import pytest
import torch

from helpers.definition_checks import constants
from helpers.reference_checks import normal
from helpers.solution_loader import load_solution
from references.test_grouped_gemm import make_inputs

DENSE = ["dense_gemm_bf16_nt_n4096_k4096", "dense_gemm_bf16_nt_n12288_k4096", "dense_gemm_bf16_nt_n4096_k12288"]
GROUPED = ["grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32"]
SMALL = dict(E=5, N=256, K=256)
SEGMENTS = [[3], [0, 0, 2, 2, 2, 3, 4], [1] * 17 + [4] * 20]
ALIGNMENT = 8
ENTRYPOINT = "sglang.srt.layers.deep_gemm_wrapper.entrypoint"
LINEAR = "sglang.multimodal_gen.runtime.layers.linear"


def assert_within_tolerance(actual, expected):
    assert actual.dtype == torch.bfloat16 and actual.is_contiguous()
    torch.testing.assert_close(actual, expected, rtol=0.016, atol=0.005, equal_nan=True)


@pytest.mark.parametrize("described", [False, True], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("row", range(5))
def test_dense_triton(reference, monkeypatch, row, described):
    """Run each configuration with a ragged last tile; persistent programs on three processors."""
    solution = load_solution(f"triton_{DENSE[0]}")
    config = solution.CONFIGS[row]
    monkeypatch.setattr(solution, "CONFIGS", [config._replace(rows=sys.maxsize)])
    monkeypatch.setattr(solution, "has_descriptors", lambda device: described)
    monkeypatch.setattr(solution, "multiprocessors", lambda device: 3)
    A, B = normal(config.block_m + 1, 256, seed=row), normal(512, 256, seed=9, scale=256**-0.5)
    with constants(reference(DENSE[0]), N=512, K=256) as run:
        assert_within_tolerance(solution.run(A, B), run(A, B))
        A.neg_()
        assert_within_tolerance(solution.run(A[:1], B), run(A[:1], B))


@pytest.fixture
def grouped_reference(reference):
    with constants(reference(GROUPED[0]), **SMALL) as run:
        yield run


def check_grouped(solution, run, ids):
    """Compare with the reference, also after inputs of a prepared launch changed in place."""
    inputs = make_inputs(ids, **SMALL, experts=5)
    launch = getattr(solution, "prepare", lambda *x: lambda: solution.run(*x))(*inputs)
    assert_within_tolerance(launch(), run(*inputs))
    for tensor, other in zip(inputs, make_inputs([4 - i for i in reversed(ids)], **SMALL, experts=5, seed=9)):
        tensor.copy_(other)
    assert_within_tolerance(launch(), run(*inputs))


@pytest.mark.parametrize("ids", SEGMENTS, ids=len)
@pytest.mark.parametrize("row", range(3))
def test_grouped_triton(grouped_reference, monkeypatch, ids, row):
    solution = load_solution(f"triton_{GROUPED[0]}")
    monkeypatch.setattr(solution, "CONFIGS", [solution.CONFIGS[row]._replace(rows=sys.maxsize)])
    check_grouped(solution, grouped_reference, ids)


@pytest.mark.parametrize("ids", SEGMENTS, ids=len)
def test_grouped_torch(grouped_reference, ids):
    check_grouped(load_solution(f"torch_{GROUPED[0]}"), grouped_reference, ids)


@pytest.mark.parametrize("kind", ["triton", "torch"])
def test_every_code_has_its_value(grouped_reference, kind):
    """Multiply all FP8 codes as rows by all FP4 pairs as weight rows; two elements of K count."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.int8)
    inputs = a, a_scale, b, b_scale, _ = make_inputs([1] * 256, **SMALL, experts=5)
    a.zero_(), b.zero_(), a_scale.fill_(127), b_scale.fill_(127)
    a[:, 38] = a[:, 39] = every
    b[1, :, 19] = every
    solution = load_solution(f"{kind}_{GROUPED[0]}")
    if kind == "triton":
        solution.CONFIGS = solution.CONFIGS[-1:]  # the fewest tiles
    assert_within_tolerance(solution.run(*inputs), grouped_reference(*inputs))


@pytest.mark.filterwarnings("ignore:overflow")
def test_extreme_scales(grouped_reference):
    """Scale ones by the bytes 255 (NaN), and 254 and 0, which make 1 again.

    Not 0 for activations: the interpreter loses subnormal numbers on their way to bfloat16.
    """
    inputs = a, a_scale, b, b_scale, _ = make_inputs([1] * 3, **SMALL, experts=5)
    a.fill_(0x38), b.fill_(0x22), a_scale.fill_(127), b_scale.fill_(127)
    a_scale[0], a_scale[1], b_scale[1, :128], b_scale[1, 128] = -1, -2, 0, -1
    expected = grouped_reference(*inputs)
    assert expected[0].isnan().all() and expected[:, 128].isnan().all() and (expected[1, :128] == 256).all()
    assert_within_tolerance(load_solution(f"triton_{GROUPED[0]}").run(*inputs), expected)


def test_a_tile_writes_its_own_rows_only(monkeypatch):
    """Run the first tile alone: the interpreter runs tiles consecutively, and later ones would hide the fault."""
    solution = load_solution(f"triton_{GROUPED[0]}")
    whole = solution._rows_and_plan

    class FirstTile:
        def __getitem__(self, grid):
            def launch(*arguments):
                whole[grid](*arguments)
                arguments[4][-1] = 1

            return launch

    monkeypatch.setattr(solution, "_rows_and_plan", FirstTile())
    monkeypatch.setattr(torch, "empty", lambda *shape, **kind: torch.full(shape, 77, **kind))
    d = solution.run(*make_inputs([0, 0, 2, 4], **SMALL, experts=5))
    assert (d[2:] == 77).all() and (d[:2] != 77).any()


def decoded_weights(solution, codes, scales):
    """Decode float32 [E, N, K] by the torch solution's own tables."""
    pairs = solution.byte_pairs(codes.device)
    return torch.stack(
        [solution.scaled(pairs[x.view(torch.uint8).int()].flatten(-2), s).float() for x, s in zip(codes, scales)]
    )


def multiply_segments(x, weights, d, layout):
    """Multiply as both libraries do: rows of an expert start at multiples of the alignment, others are not read."""
    for first in range(0, len(layout), ALIGNMENT):
        assert layout[first : first + ALIGNMENT].unique().numel() <= 2
    for i in (layout >= 0).nonzero().flatten().tolist():
        assert layout[i - i % ALIGNMENT] == layout[i]
        d[i] = weights[layout[i]].float() @ x[i].float()


def multiply_fp8_fp4(lhs, rhs, d, layout, recipe_a, recipe_b):
    torch_solution = load_solution(f"torch_{GROUPED[0]}")
    assert recipe_a == recipe_b == (1, 32)
    for scale, rows in ((lhs[1], len(lhs[0])), (rhs[1], rhs[0].shape[1])):
        assert scale.dtype == torch.int32 and scale.stride(-2) == 1 and scale.stride(-1) == -(-rows // 4) * 4
    scales = [scale.contiguous().view(torch.int8) for scale in (lhs[1], rhs[1])]
    x = torch_solution.scaled(lhs[0].bfloat16(), scales[0])
    multiply_segments(x, decoded_weights(torch_solution, rhs[0], scales[1]), d, layout)


@pytest.fixture
def libraries(monkeypatch):
    """Install stand-ins with the signatures of DeepGEMM and of the engine's entry point."""
    deep_gemm, entrypoint = ModuleType("deep_gemm"), ModuleType(ENTRYPOINT)
    deep_gemm.get_mk_alignment_for_contiguous_layout = lambda: ALIGNMENT
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous = multiply_segments
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous = multiply_fp8_fp4
    deep_gemm.bf16_gemm_nt = lambda a, b, d: d.copy_(a.float() @ b.float().T)
    entrypoint.get_contiguous_layout_alignment = lambda expected_m, num_groups: ALIGNMENT
    entrypoint.contiguous_layout_alignment_scope = contextlib.nullcontext
    entrypoint.grouped_gemm_nt_f8f8bf16_contig = multiply_fp8_fp4
    parts = ENTRYPOINT.split(".")
    for count in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(parts[count - 1]))
    monkeypatch.setitem(sys.modules, ENTRYPOINT, entrypoint)
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)


@pytest.mark.parametrize("ids", SEGMENTS, ids=len)
@pytest.mark.parametrize("has_fp4", [False, True], ids=["sm_90", "sm_100"])
def test_grouped_deepgemm(grouped_reference, libraries, monkeypatch, has_fp4, ids):
    solution = load_solution(f"deepgemm_{GROUPED[0]}")
    monkeypatch.setattr(solution, "has_fp4_product", lambda device: has_fp4)
    check_grouped(solution, grouped_reference, ids)


@pytest.mark.parametrize("ids", SEGMENTS, ids=len)
def test_grouped_sglang(grouped_reference, libraries, ids):
    check_grouped(load_solution(f"sglang_{GROUPED[0]}"), grouped_reference, ids)


@pytest.mark.parametrize("library", ["deep_gemm", "torch"])
def test_dense_deepgemm_follows_its_table(reference, libraries, monkeypatch, library):
    solution = load_solution(f"deepgemm_{DENSE[0]}")
    assert all(name in ("deep_gemm", "torch") for _, name in solution.FASTER)
    monkeypatch.setattr(solution, "FASTER", ((3, "neither"), (sys.maxsize, library)))
    monkeypatch.setattr(sys.modules["deep_gemm"], "bf16_gemm_nt", lambda a, b, d: d.fill_(7))
    A, B = normal(4, 64, seed=1), normal(4096, 64, seed=2)
    with constants(reference(DENSE[0]), K=64) as run:
        expected = run(A, B) if library == "torch" else torch.full((4, 4096), 7).bfloat16()
    assert_within_tolerance(solution.run(A, B), expected)


def test_measured_tables_cover_every_size():
    for name in DENSE:
        for table in (load_solution(f"triton_{name}").CONFIGS, load_solution(f"deepgemm_{name}").FASTER):
            limits = [row[0] for row in table]
            assert limits == sorted(limits) and limits[-1] == sys.maxsize


@pytest.mark.parametrize(
    "path, parameters",
    [
        (f"{LINEAR}.UnquantizedLinearMethod.apply", ["self", "layer", "x", "bias"]),
        (f"{ENTRYPOINT}.get_contiguous_layout_alignment", ["expected_m", "num_groups"]),
        (f"{ENTRYPOINT}.contiguous_layout_alignment_scope", ["alignment"]),
        (f"{ENTRYPOINT}.grouped_gemm_nt_f8f8bf16_contig", ["lhs", "rhs", "out", "m_indices", "recipe_a", "recipe_b"]),
    ],
)
def test_the_engine_has_the_functions_that_the_adapters_call(engine, path, parameters):
    assert engine.parameters(path) == parameters


def test_the_engine_calls_deep_gemm_by_the_names_used_here(engine):
    tree = engine.tree(ENTRYPOINT.replace(".", "/") + ".py")
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert names >= {"bf16_gemm_nt", "m_grouped_bf16_gemm_nt_contiguous", "get_mk_alignment_for_contiguous_layout"}
