"""Test attention solutions: kernels against the references, adapters on stand-ins for the library they call."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.reference_checks import normal
from helpers.solution_loader import load_solution
from inference_kernels.core.files import read_json

DENSE = {f"dense_attention_noncausal_h32_d{dim}": dim for dim in (128, 64)}
EMPTY = "block_causal_attention_empty_prefix_h32_d128"
CACHED = "block_causal_attention_cached_prefix_h32_d128"
WINDOWS = {
    "neighborhood_attention_3d_h32_d64_w3x7x7": (3, 7, 7),
    "neighborhood_attention_3d_h16_d64_w3x7x7": (3, 7, 7),
    "neighborhood_attention_3d_h8_d64_w3x5x5": (3, 5, 5),
    "neighborhood_attention_3d_h4_d64_w11x11x11": (11, 11, 11),
}
HEADS = 2  # the interpreter is slow: kernels and references run with two heads
LAYOUT = [(130, True), (37, False), (9, True), (150, False)]  # rows, is text: a prefix and its target
FIRST, SMALL_WINDOW, LARGE_WINDOW = (list(WINDOWS)[i] for i in (0, 2, 3))


def kv_end_of(layout) -> torch.Tensor:
    ends, start = [], 0
    for rows, is_text in layout:
        ends += [start + i + 1 if is_text else start + rows for i in range(rows)]
        start += rows
    return torch.tensor(ends, dtype=torch.int32)


def small_inputs(name: str, heads: int = HEADS, seed: int = 0) -> list[torch.Tensor]:
    def tensors(*rows):
        return [normal(*row, seed=10 * seed + i) for i, row in enumerate(rows)]

    if name in DENSE:
        return tensors((2, 11, heads, DENSE[name]), *[(2, 17, heads, DENSE[name])] * 2)
    if name == EMPTY:
        kv_end = kv_end_of([(5, True), (8, False), (3, True), (7, False)])
        return tensors(*[(len(kv_end), heads, 128)] * 3) + [kv_end]
    if name == CACHED:
        return tensors((9, heads, 128), *[(5, heads, 128)] * 2, *[(9, heads, 128)] * 2)
    grid = [max(window, 4) for window in WINDOWS[name]]
    return neighborhood_inputs(1, *grid, heads, seed=seed)


def neighborhood_inputs(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    q, k, v = (normal(*shape, 64, seed=10 * seed + i) for i in range(3))
    return [q * 0.375, k, v]


def assert_passes(name: str, actual: torch.Tensor, expected: torch.Tensor, repository) -> None:
    """Require the task's bound of every element, also where the task lets a few fail."""
    tolerance = read_json(repository / "tasks" / f"{name}.json")["tolerance"]
    assert actual.dtype == torch.bfloat16 and actual.shape == expected.shape and actual.is_contiguous()
    bound = tolerance["atol"] + tolerance["rtol"] * expected.float().abs()
    assert ((actual.float() - expected.float()).abs() <= bound).all()


@pytest.fixture
def pair(reference):
    """Return pair(prefix, name, heads) -> the solution's module and the reference, both with that many heads."""

    def load(prefix: str, name: str, heads: int = HEADS):
        module, run = load_solution(f"{prefix}_{name}"), reference(name)
        module.H = run.__globals__["H"] = heads
        if name in WINDOWS and prefix == "triton":  # the interpreter takes time per program and block
            module.TILE, module.BLOCK_N = ((4, 8, 8), 2048) if module.WINDOW[0] == 11 else (module.TILE, 512)
        return module, run

    return load


@pytest.fixture
def check(pair, repository):
    def run_both(prefix: str, name: str, inputs: list[torch.Tensor], heads: int = HEADS) -> None:
        module, run = pair(prefix, name, heads)
        before = [x.clone() for x in inputs]
        assert_passes(name, module.run(*inputs), run(*inputs), repository)
        assert all(torch.equal(x, y) for x, y in zip(inputs, before))

    return run_both


@pytest.mark.parametrize("B, Nq, Nk", [(1, 1, 1), (2, 130, 131), (1, 3, 600)], ids=["one", "odd", "split over keys"])
@pytest.mark.parametrize("name", DENSE)
def test_dense_kernel(check, name, B, Nq, Nk):
    dim = DENSE[name]
    check("triton", name, [normal(B, rows, HEADS, dim, seed=i) for i, rows in enumerate((Nq, Nk, Nk))])


def test_few_queries_split_the_keys(monkeypatch):
    module = load_solution(f"triton_{next(iter(DENSE))}")
    q, k = normal(1, 3, HEADS, 128), normal(1, 600, HEADS, 128)
    module.H, grids = HEADS, []
    monkeypatch.setattr(module, "_attention", {}.get)
    for programs in (module.PROGRAMS, 1):
        module.PROGRAMS = programs
        launch = module.prepare(q, k, k)
        grids.append(launch.__closure__[launch.__code__.co_freevars.index("grid")].cell_contents)
    assert [grid[2] for grid in grids] == [2, 1]


@pytest.mark.parametrize(
    "layout",
    [LAYOUT, [(1, True)], [(5, False), (3, True), (70, False)]],
    ids=["text and images", "one row", "image first"],
)
def test_block_causal_kernel(check, layout):
    kv_end = kv_end_of(layout)
    qkv = [normal(len(kv_end), HEADS, 128, seed=i) for i in range(3)]
    check("triton", EMPTY, [*qkv, kv_end])


def test_rows_past_the_bound_have_no_influence(pair):
    """Change rows past the bound, some in a block with visible ones."""
    module, _ = pair("triton", EMPTY)
    kv_end = kv_end_of([(40, True), (50, False)])
    q, k, v = (normal(90, HEADS, 128, seed=i) for i in range(3))
    before = module.run(q, k, v, kv_end)
    k[40:], v[40:] = 50.0, 1e30
    assert torch.equal(module.run(q, k, v, kv_end)[:40], before[:40])


@pytest.mark.parametrize("T, P", [(1, 1), (130, 140)])
def test_prefix_kernel(check, T, P):
    rows = (T, P, P, T, T)
    check("triton", CACHED, [normal(n, HEADS, 128, seed=i) for i, n in enumerate(rows)])


@pytest.mark.parametrize("prefix", ["triton", "torch"])
@pytest.mark.parametrize(
    "name, shape",
    [(FIRST, (2, 3, 7, 7)), (FIRST, (1, 4, 9, 10)), (SMALL_WINDOW, (1, 5, 6, 9)), (LARGE_WINDOW, (1, 11, 12, 11))],
)
def test_neighborhood_kernel(check, prefix, name, shape):
    check(prefix, name, neighborhood_inputs(*shape, HEADS))


@pytest.mark.parametrize("name", WINDOWS)
def test_words_hold_the_box_of_keys(name):
    module = load_solution(f"triton_{name}")
    box = [tile + window - 1 for tile, window in zip(module.TILE, module.WINDOW)]
    assert box[0] + box[1] <= 32 and box[2] <= 31 and torch.tensor(module.TILE).prod() >= 64
    words = module.key_words(box, torch.device("cpu"))
    keys = box[0] * box[1] * box[2]
    assert words.shape == (1 if sum(box) <= 31 else 2, -(-keys // module.BLOCK_N) * module.BLOCK_N)
    assert len({tuple(word) for word in words[:, :keys].T.tolist()}) == keys  # every key has its own bits


@pytest.mark.parametrize("name", [*DENSE, EMPTY, CACHED, SMALL_WINDOW])
@pytest.mark.parametrize("prefix", ["triton", "torch"])
def test_a_prepared_launch_follows_changed_values(pair, repository, prefix, name):
    module, run = pair(prefix, name)
    inputs = small_inputs(name)
    launch = module.prepare(*inputs)
    first, expected = launch(), run(*inputs)
    for x, fresh in zip(inputs, small_inputs(name, seed=1)):
        x.copy_(fresh)
    second = launch()
    assert_passes(name, first, expected, repository)
    assert_passes(name, second, run(*inputs), repository)


# The engine's adapters, with its attention replaced by PyTorch's.

ENGINE = "sglang.multimodal_gen.runtime"
BACKENDS = f"{ENGINE}.layers.attention.backends"
DECODER = f"{ENGINE}.models.decoders.ltx_2_5_diffusion_decoder"


def sdpa(q, k, v, *_):
    heads_first = (x.transpose(1, 2).float() for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2).bfloat16()


def stand_in(monkeypatch, path: str, **members) -> None:
    """Register a module at `path` with these members, and the packages above it."""
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name, ModuleType(name)))
        if count > 1:
            monkeypatch.setattr(
                sys.modules[".".join(parts[: count - 1])], parts[count - 1], sys.modules[name], raising=False
            )
    for name, value in members.items():
        monkeypatch.setattr(sys.modules[path], name, value, raising=False)


@pytest.mark.parametrize("name", [*DENSE, EMPTY, CACHED])
def test_engine_attention_adapter(monkeypatch, check, name):
    def backend(**options):
        assert options["softmax_scale"] == options["head_size"] ** -0.5 and not options["causal"]
        return SimpleNamespace(forward=sdpa)

    def additive(mask, dtype, device):
        return (mask.to(dtype) - 1) * torch.finfo(dtype).max

    stand_in(monkeypatch, f"{BACKENDS}.sdpa", SDPAImpl=backend)
    stand_in(monkeypatch, f"{BACKENDS}.flash_attn")
    stand_in(monkeypatch, f"{ENGINE}.layers.attention.layer", prepare_sdpa_mask=additive)
    check("sglang", name, small_inputs(name))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6))
def test_segments_are_recovered(layout):
    """Join neighbouring texts; read an image of one row as text: both see the same keys."""
    kv_end = kv_end_of(layout)
    segments = load_solution(f"sglang_{EMPTY}").segments_of(kv_end)
    assert [start for start, _, _ in segments] == [0, *(end for _, end, _ in segments)][:-1]
    assert kv_end_of([(end - start, is_text) for start, end, is_text in segments]).equal(kv_end)


@pytest.mark.parametrize("prefix", ["sglang", "natten"])
@pytest.mark.parametrize("name", WINDOWS)
def test_na3d_adapters(monkeypatch, prefix, name):
    def na3d(q, k, v, kernel_size, scale):
        assert kernel_size == WINDOWS[name] and scale == 1.0
        return q + 2 * k + 3 * v

    stand_in(monkeypatch, "natten.functional", na3d=na3d)
    stand_in(monkeypatch, DECODER, _na3d=lambda: na3d)
    inputs = neighborhood_inputs(1, 2, 2, 2, HEADS)
    assert load_solution(f"{prefix}_{name}").run(*inputs).equal(na3d(*inputs, WINDOWS[name], 1.0))


def test_flex_attention_adapter(monkeypatch, check):
    """Call the engine's block mask and compiled function without NATTEN, heads before positions."""
    name = SMALL_WINDOW
    q, k, v = small_inputs(name)

    def flex(q, k, v, block_mask, scale):
        assert block_mask == ((4, 5, 5), (3, 5, 5)) and scale == 1.0
        grid = (1, 4, 5, 5, HEADS, 64)
        return (
            load_solution(f"torch_{name}")
            .run(*(x.transpose(1, 2).reshape(grid) for x in (q, k, v)))
            .flatten(1, 3)
            .transpose(1, 2)
        )

    stand_in(
        monkeypatch,
        DECODER,
        _na3d=lambda: None,
        _flex_attention_fn=lambda: flex,
        _neighborhood_block_mask=lambda t, y, x, window, device: ((t, y, x), window),
    )
    check("sglang", name, [q, k, v])


@pytest.mark.parametrize("block_m", [128, 256])
def test_sparse_blocks_of_flash_attention_4(monkeypatch, block_m):
    stand_in(monkeypatch, "cutlass.cute", jit=lambda function: function)
    stand_in(monkeypatch, "flash_attn.cute.utils")
    stand_in(monkeypatch, "flash_attn.cute.interface", flash_attn_func=None)
    stand_in(monkeypatch, "flash_attn.cute.block_sparsity", BlockSparseTensorsTorch=SimpleNamespace)
    kv_end = kv_end_of([(200, True), (300, False), (9, True), (420, False)])
    visible = torch.arange(1024) < kv_end[:, None]  # padded to whole key blocks
    sparse = load_solution(f"fa4_{EMPTY}").sparse_blocks(kv_end, block_m)
    assert sparse.block_size == (block_m, 128) and sparse.mask_block_idx.dtype == torch.int32
    for block, rows in enumerate(visible.split(block_m)):
        tiles = rows.view(len(rows), 8, 128).transpose(0, 1).flatten(1)
        full = sparse.full_block_idx[0, 0, block, : sparse.full_block_cnt[0, 0, block]].tolist()
        masked = sparse.mask_block_idx[0, 0, block, : sparse.mask_block_cnt[0, 0, block]].tolist()
        assert full == tiles.all(1).nonzero().flatten().tolist()
        assert masked == (tiles.any(1) & ~tiles.all(1)).nonzero().flatten().tolist()


# What the adapters use of the pinned engine.


@pytest.mark.parametrize(
    "path, parameters",
    [
        *(
            (f"{BACKENDS}.{owner}.__init__", "num_heads head_size causal softmax_scale")
            for owner in ("sdpa.SDPAImpl", "sdpa.DynamicCudnnSDPAImpl", "flash_attn.FlashAttentionImpl")
        ),
        *(
            (f"{BACKENDS}.{owner}.forward", "self query key value attn_metadata")
            for owner in ("sdpa.SDPAImpl", "sdpa.DynamicCudnnSDPAImpl", "flash_attn.FlashAttentionImpl")
        ),
        (f"{ENGINE}.layers.attention.layer.prepare_sdpa_mask", "mask dtype device"),
        (f"{DECODER}._na3d", ""),
        (f"{DECODER}._flex_attention_fn", ""),
        (f"{DECODER}._neighborhood_block_mask", "num_frames height width kernel_size device"),
    ],
)
def test_the_engine_has_what_the_adapters_call(engine, path, parameters):
    found = [name for name in engine.parameters(path) if name != "self" or "self" in parameters]
    assert found[: len(parameters.split())] == parameters.split()
