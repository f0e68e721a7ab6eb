"""Rearrangements: legal on real dimensions, and the reference's result follows them exactly as declared."""

import json
from dataclasses import replace

import pytest
import torch

from helpers.reference_checks import normal
from inference_kernels.core.compare import compare
from inference_kernels.core.constraints import evaluate
from inference_kernels.core.definitions import compile_reference, const_axes, definition_files, infer_axes
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.tasks import read_task
from inference_kernels.judge.rearrange import (
    DrawnMove,
    Move,
    MovedAxis,
    draw_move,
    fp4_pages,
    fp8_pages,
    moves_of,
    permute_,
)
from references import (
    test_expert_router,
    test_gdn,
    test_grouped_gemm,
    test_mixed_mla,
    test_sparse_gqa,
    test_sparse_index,
    test_sparse_mla,
)

GEMM = "dense_gemm_bf16_nt_n4096_k4096"
GROUPED = "grouped_gemm_fp8_fp4_e384_n4608_k5120_g32"
INDEX = "sparse_index_select_bf16_h4_d128_topk512_blk4"


def run_reference(value: dict, inputs: dict) -> dict:
    """The reference's outputs by name; the grouped GEMM with the small constants of `grouped_inputs`."""
    run = compile_reference(value)
    if value["name"] == GROUPED:
        run.__globals__.update(E=4, N=8, K=128)
    results = run(*inputs.values())
    return dict(zip(value["outputs"], results if isinstance(results, tuple) else (results,)))


def grouped_inputs():
    """Few experts and columns; the reference reads its sizes from the tensors."""
    return test_grouped_gemm.make_inputs([0, 0, 0, 2, 2, 3, 3, 3], E=4, N=8, K=128, experts=4)


INPUTS = {
    GEMM: lambda: (normal(5, 4096, seed=1), normal(4096, 4096, seed=2)),
    GROUPED: grouped_inputs,
    "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512": lambda: (*test_mixed_mla.real_case()[0], 512**-0.5),
    "sparse_mla_prefill_bf16_h64_d512_s128": lambda: (
        *test_sparse_mla.real_case("sparse_mla_prefill_bf16_h64_d512_s128")[0],
        512**-0.5,
    ),
    "expert_router_bf16_h5120_e384_top6": lambda: (*test_expert_router.real_case()[0], 1.5),
    INDEX: lambda: test_sparse_index.cases()[0][0],
    "sparse_gqa_bf16_h24_kv2_d256_topk512_blk4": lambda: test_sparse_gqa.cases()[0][0],
    "gdn_decode_qk4_v8_d128_k_last": lambda: test_gdn.make_inputs("gdn_decode_qk4_v8_d128_k_last", [2, 1], 5),
    "gdn_prefill_qk4_v8_d128_k_last": lambda: test_gdn.make_inputs("gdn_prefill_qk4_v8_d128_k_last", [4, 2], 5),
    "block_causal_attention_empty_prefix_h32_d128": lambda: (
        *(normal(9, 32, 128, seed=s) for s in range(3)),
        torch.tensor([1, 2, 3, 7, 7, 7, 7, 9, 9]).int(),
    ),
    "block_causal_attention_cached_prefix_h32_d128": lambda: tuple(
        normal(rows, 32, 128, seed=s) for s, rows in enumerate((6, 4, 4, 6, 6))
    ),
    "dense_attention_noncausal_h32_d64": lambda: tuple(normal(2, n, 32, 64, seed=n) for n in (5, 7, 7)),
    "neighborhood_attention_3d_h8_d64_w3x5x5": lambda: tuple(normal(2, 3, 5, 6, 8, 64, seed=s) for s in range(3)),
}


def case(definition, name):
    """(definition, inputs by name, axes) of a small call in the definition's own dimensions."""
    value = definition(name)
    inputs = dict(zip(value["inputs"], INPUTS[name]()))
    inputs = {key: item.clone() if isinstance(item, torch.Tensor) else item for key, item in inputs.items()}
    if name == GROUPED:
        axes = {"M": 8, "E": 4, "N": 8, "K": 128, "K_half": 64, "K_groups": 4}
    else:
        shapes = {key: tuple(item.shape) for key, item in inputs.items() if isinstance(item, torch.Tensor)}
        axes = const_axes(value) | infer_axes(value, shapes, name)
    return value, inputs, axes


def effective_move(move: Move, inputs: dict, axes: dict) -> DrawnMove:
    """The first draw that is not the identity."""
    draws = (draw_move(move, inputs, axes, torch.Generator().manual_seed(seed)) for seed in range(20))
    return next(filter(None, draws))


def after(drawn: DrawnMove, values: dict) -> dict:
    moved = {key: item.clone() if isinstance(item, torch.Tensor) else item for key, item in values.items()}
    drawn.apply({key: item for key, item in moved.items() if isinstance(item, torch.Tensor)})
    return moved


def differs(one: dict, other: dict) -> bool:
    return any(
        isinstance(item, torch.Tensor) and not torch.equal(item.view(torch.uint8), other[key].view(torch.uint8))
        for key, item in one.items()
    )


def fails(actual: dict, expected: dict, tolerance) -> list[str]:
    return [key for key in expected if not compare(actual[key], expected[key], tolerance).passed]


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_follows_every_move(definition, repository, name):
    value, inputs, axes = case(definition, name)
    tolerance = read_task(repository, name).tolerance
    base = run_reference(value, inputs)
    for move in moves_of(read_task(repository, value["name"]).rearrangements):
        drawn = effective_move(move, inputs, axes)
        moved = after(drawn, inputs)
        assert differs(moved, inputs), move.name
        broken = [rule for rule in value.get("constraints") or [] if not evaluate(rule, {**axes, **moved}, name)]
        assert broken == [], move.name
        result = run_reference(value, moved)
        if move.recompute:
            assert fails(result, base, tolerance), f"{move.name} changes nothing"
        else:
            assert fails(result, after(drawn, base), tolerance) == [], move.name


@pytest.mark.parametrize(
    "name",
    [GEMM, INDEX, "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512", "block_causal_attention_cached_prefix_h32_d128"],
)
def test_a_move_with_a_forgotten_place_is_caught(definition, repository, name):
    """The check above can fail: without one of its places, a move no longer carries the result along."""
    value, inputs, axes = case(definition, name)
    tolerance, base = read_task(repository, name).tolerance, run_reference(value, inputs)
    move = moves_of(read_task(repository, value["name"]).rearrangements)[0]
    drawn = effective_move(move, inputs, axes)
    for place in move.places:
        partial = replace(drawn, move=replace(move, places=tuple(p for p in move.places if p != place)))
        result = run_reference(value, after(partial, inputs))
        assert fails(result, after(partial, base), tolerance), f"{move.name} without {place.tensor}"


def test_every_definition_has_moves_that_name_its_own_tensors(definition, repository):
    for path in definition_files(repository):
        value = definition(path.stem)
        moves, tensors = (
            moves_of(read_task(repository, value["name"]).rearrangements),
            {**value["inputs"], **value["outputs"]},
        )
        for move in moves:
            for place in move.places:
                assert place.view or place.dim < len(tensors[place.tensor]["shape"]), (path.stem, move.name)
                axis = None if place.view else tensors[place.tensor]["shape"][place.dim]
                size = axis and value["axes"][axis].get("value")
                assert size is None or size % place.unit == 0, (path.stem, move.name)
            assert all(name in tensors for name, _ in move.relabel)
        outputs = set(value["outputs"])
        assert any(
            move.after_prepare and (move.recompute or outputs & {place.tensor for place in move.places})
            for move in moves
        ), f"{path.stem}: nothing proves that a launch reads its inputs"


def test_rows_move_only_inside_their_group():
    move = Move("rows", (MovedAxis("a", 0),), within=("ids",))
    ids = torch.tensor([2, 0, 1, 0, 2, 0], dtype=torch.int32)
    draws = [
        draw_move(move, {"a": torch.arange(6), "ids": ids}, {}, torch.Generator().manual_seed(seed))
        for seed in range(200)
    ]
    orders = {tuple(drawn.order.tolist()) for drawn in draws if drawn}
    assert len(orders) == 2 * 6 - 1, "two rows and three rows change places in every way but the trivial one"
    assert all(torch.equal(ids[list(order)], ids) for order in orders)
    lonely = {"a": torch.arange(3), "ids": torch.tensor([0, 1, 2])}
    assert draw_move(move, lonely, {}, torch.Generator()) is None


def test_groups_of_two_keys_are_those_rows_that_agree_in_both():
    move = Move("rows", (MovedAxis("a", 0),), within=("ids", "kind"))
    one, other = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([1, 1, 0, 1, 1, 0])
    inputs = {"a": torch.arange(6), "ids": one, "kind": other}
    orders = {
        tuple(drawn.order.tolist())
        for seed in range(50)
        if (drawn := draw_move(move, inputs, {}, torch.Generator().manual_seed(seed)))
    }
    assert orders == {(4, 1, 2, 3, 0, 5), (0, 3, 2, 1, 4, 5), (4, 3, 2, 1, 0, 5)}


def test_relabelled_ids_point_at_the_same_rows():
    table, ids = torch.arange(12.0).view(6, 2), torch.tensor([5, -1, 0, 3, 3], dtype=torch.int32)
    move = Move("pages", (MovedAxis("table", 0, unit=2),), relabel=(("ids", "P"),))
    drawn = draw_move(move, {"table": table, "ids": ids}, {"P": 2}, torch.Generator().manual_seed(1))
    values = after(drawn, {"table": table, "ids": ids})
    assert torch.equal(values["table"][values["ids"].long()][ids >= 0], table[ids.long()][ids >= 0])
    assert values["ids"][1] == -1


def test_inner_and_block_permutations_keep_their_structure():
    values = torch.arange(12).view(1, 12)
    order = torch.tensor([2, 0, 1])
    inner, blocks = values.clone(), values.clone()
    permute_(inner, MovedAxis("q", 1, unit=3, inner=True), order)
    permute_(blocks, MovedAxis("q", 1, unit=4), order)
    assert inner.tolist() == [[2, 0, 1, 5, 3, 4, 8, 6, 7, 11, 9, 10]]
    assert blocks.tolist() == [[8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]]


def test_page_views_cover_every_byte_once():
    for view, bytes_a_row in ((fp8_pages, 528), (fp4_pages, 288)):
        pages = torch.zeros(2, 8, bytes_a_row, dtype=torch.int8)
        for part, _, _ in view(pages):
            part += 1
        assert bool((pages == 1).all())


@pytest.mark.parametrize("text", ["q", "q.", "q.1*", "q.1x2", "q@", ".1"])
def test_a_misspelt_place_is_refused(text):
    with pytest.raises(SchemaError, match="correct the move"):
        MovedAxis.parse(text)


@pytest.mark.parametrize("move", [{"name": "rows", "axes": "a.0", "reorder": True}, {"name": "rows"}])
def test_a_move_with_unknown_or_missing_keys_is_refused(repository, tmp_path, move):
    task = json.loads((repository / "tasks" / f"{GEMM}.json").read_text()) | {"rearrangements": [move]}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / f"{GEMM}.json").write_text(json.dumps(task))
    with pytest.raises(SchemaError, match="rearrangements"):
        read_task(tmp_path, GEMM)
