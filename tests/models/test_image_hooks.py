"""The hooks of the image transformer, driven by toy classes that make the engine's calls."""

import functools

import pytest
import torch
from torch import nn

from helpers.seeded_bytes import recipe_bytes
from helpers.toy_image_engine import (
    DIM,
    HEADS,
    WIDTH,
    Attention,
    Block,
    FakeRecorder,
    LocalAttention,
    USPAttention,
    qkv,
)
from inference_kernels.models.image.hooks import EngineStep, ImageHooks
from inference_kernels.models.image.spec import CACHED_PREFIX, EMPTY_PREFIX, N4096_K4096
from inference_kernels.seeded.recipes import recipe_for_std

TEXT_IMAGE_TEXT = ((0, 3, False), (3, 9, True), (9, 11, False))


@pytest.fixture
def engine(monkeypatch):
    """build(**selection) -> (hooks, recorder, model); `hooks.here` is the place the engine is at."""

    def wrap(owner, name, hook):
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(lambda *args, **kwargs: hook(original, *args, **kwargs))
        monkeypatch.setattr(owner, name, wrapper)

    def build(recipes=None, **selection):
        recorder, model = FakeRecorder(**selection), nn.Module()
        model.transformer_blocks = nn.ModuleList([Block(), Block()])
        hooks = ImageHooks(recorder, lambda: hooks.here, recipes or {})
        hooks.here = EngineStep("teapot", 42, 0)
        hooks.attach(model)
        wrap(Attention, "attend_sample", hooks.around_attend_sample)
        wrap(USPAttention, "forward", hooks.around_target)
        wrap(LocalAttention, "forward", hooks.around_local)
        wrap(USPAttention, "forward_with_replicated_kv_prefix", hooks.around_split_target)
        return hooks, recorder, model

    return build


def attend(model, cache, segments=TEXT_IMAGE_TEXT, target=5, block=0, seed=0, packed=False):
    rows = segments[-1][1]
    layout = {"segments": segments, "prefix_rope": torch.zeros(rows, 64)}
    q, k, v = qkv(target, 1 + seed, packed)
    prefix = None if cache else qkv(rows, 2 + seed)
    output, _ = model.transformer_blocks[block].attn.attend_sample(q, k, v, None, prefix, layout, cache)
    return (q, k, v), prefix, output


def assert_reference_agrees(reference, call):
    expected = reference(call.definition)(*call.inputs.values())
    torch.testing.assert_close(call.outputs["o"], expected, rtol=0.016, atol=0.005)


@pytest.mark.parametrize(
    "segments",
    [((0, 7, False),), TEXT_IMAGE_TEXT, ((0, 4, True), (4, 5, False), (5, 9, True))],
    ids=["text", "text-image-text", "image-text-image"],
)
def test_first_step_is_one_call_of_the_empty_prefix_definition(engine, reference, segments):
    _, recorder, model = engine()
    (q, k, v), prefix, output = attend(model, {}, segments)
    [call], rows = recorder.calls, segments[-1][1]
    assert not recorder.errors and call.definition == EMPTY_PREFIX
    for name, target, before in (("q", q, prefix[0]), ("k", k, prefix[1]), ("v", v, prefix[2])):
        assert torch.equal(call.inputs[name], torch.cat([before, target], 1)[0])
    assert torch.equal(call.outputs["o"][rows:], output[0])
    assert call.inputs["kv_end"].tolist()[rows:] == [rows + 5] * 5
    assert call.operation["phase"] == "empty prefix"
    assert call.operation["layer"] == "transformer_blocks.0.attn"
    assert_reference_agrees(reference, call)


def test_kv_end_follows_the_segments(engine):
    _, recorder, model = engine()
    attend(model, {})
    assert recorder.calls[0].inputs["kv_end"].tolist() == [1, 2, 3] + [9] * 6 + [10, 11] + [16] * 5
    assert any("[3, 9) image" in note for note in recorder.calls[0].adaptations)


@pytest.mark.parametrize("packed", [False, True])
def test_later_step_is_the_cached_prefix_definition(engine, reference, monkeypatch, packed):
    monkeypatch.setattr(Attention, "packed", packed)
    hooks, recorder, model = engine()
    cache = {}
    _, prefix, _ = attend(model, cache)
    hooks.here = EngineStep("teapot", 42, 1)
    (q, k, v), _, output = attend(model, cache, seed=5)
    call = recorder.calls[1]
    assert not recorder.errors and call.definition == CACHED_PREFIX
    expected = {"q": q, "k_prefix": prefix[1], "v_prefix": prefix[2], "k": k, "v": v}
    assert list(call.inputs) == list(expected)
    assert all(torch.equal(call.inputs[name], value[0]) for name, value in expected.items())
    assert torch.equal(call.outputs["o"], output[0])
    assert_reference_agrees(reference, call)


def test_calls_through_forward_are_seen(engine, monkeypatch):
    monkeypatch.setattr(Attention, "direct", True)
    _, recorder, model = engine()
    attend(model, {})
    assert [call.definition for call in recorder.calls] == [EMPTY_PREFIX]


def test_buffers_reused_after_the_call_do_not_change_the_record(engine, reference):
    _, recorder, model = engine()
    tensors, prefix, output = attend(model, {})
    for tensor in (*tensors, *prefix, output):
        tensor.fill_(7)
    assert_reference_agrees(reference, recorder.calls[0])


def test_an_output_buffer_shared_by_the_calls_of_a_sample_is_copied(engine, reference, monkeypatch):
    monkeypatch.setattr(LocalAttention, "buffers", {})
    _, recorder, model = engine()
    attend(model, {}, ((0, 4, False), (4, 8, True)), target=4)
    assert_reference_agrees(reference, recorder.calls[0])


def test_prefix_rows_are_those_before_the_call(engine, monkeypatch):
    monkeypatch.setattr(Attention, "grows", True)
    hooks, recorder, model = engine()
    cache = {}
    attend(model, cache, ((0, 7, False),))
    hooks.here = EngineStep("teapot", 42, 1)
    rows = cache["key"].shape[1]
    attend(model, cache)
    assert not recorder.errors
    assert recorder.calls[1].inputs["k_prefix"].shape[0] == rows < cache["key"].shape[1]


def test_strided_views_are_copied_and_noted(engine, reference):
    _, recorder, model = engine()
    attend(model, {}, packed=True)
    call = recorder.calls[0]
    assert all(tensor.is_contiguous() for tensor in (*call.inputs.values(), *call.outputs.values()))
    assert any(note.startswith("q: strides") and "12288" in note for note in call.adaptations)
    assert_reference_agrees(reference, call)


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda mask, is_image: mask if is_image else mask.flip(-1), "causal mask"),
        (lambda mask, is_image: mask if is_image else None, "causal mask"),
        (lambda mask, is_image: mask if is_image else mask.float(), "causal mask"),
        (lambda mask, is_image: torch.ones(1, 1, 6, 9, dtype=torch.bool) if is_image else mask, "full mask"),
    ],
)
def test_another_mask_is_an_error_and_the_engine_goes_on(engine, monkeypatch, change, word):
    _, recorder, model = engine()
    monkeypatch.setattr(Attention, "break_mask", staticmethod(change))
    _, _, output = attend(model, {})
    assert output.shape == (1, 5, HEADS, DIM)
    assert not recorder.calls and len(recorder.errors) == 1 and word in recorder.errors[0]


@pytest.mark.parametrize("segments", [((0, 3, False), (4, 9, True)), ((1, 9, False),), ((0, 9, True), (9, 10, True))])
def test_segments_that_do_not_tile_the_prefix_are_an_error(engine, segments):
    hooks, recorder, model = engine()
    layout = {"segments": segments, "prefix_rope": torch.zeros(9, 64)}
    model.transformer_blocks[0].attn.attend_sample(*qkv(5, 1), None, qkv(9, 2), layout, {})
    assert not recorder.calls and "tile" in recorder.errors[0]


def test_prefix_keys_that_differ_between_the_calls_are_an_error(engine, monkeypatch):
    _, recorder, model = engine()
    original = USPAttention.forward_with_replicated_kv_prefix
    monkeypatch.setattr(
        USPAttention,
        "forward_with_replicated_kv_prefix",
        lambda self, q, kp, vp, k, v: original(self, q, kp + 1, vp, k, v),
    )
    attend(model, {})
    assert not recorder.calls and "same prefix keys" in recorder.errors[0]


def test_a_target_call_that_the_hooks_miss_is_an_error(engine, monkeypatch):
    _, recorder, model = engine()
    monkeypatch.setattr(USPAttention, "forward_with_replicated_kv_prefix", lambda self, q, kp, vp, k, v: q)
    attend(model, {})
    assert not recorder.calls and "one target attention call" in recorder.errors[0]


def test_other_owners_steps_blocks_and_warm_up_are_not_captured(engine):
    hooks, recorder, model = engine()
    LocalAttention()(*qkv(4, 1))
    attend(model, {}, block=1)
    hooks.here = EngineStep("teapot", 42, 5)
    attend(model, {})
    assert not recorder.calls and recorder.counts == {EMPTY_PREFIX: 2}
    hooks.here = None
    attend(model, {})
    assert not recorder.calls and recorder.counts == {EMPTY_PREFIX: 2}


def test_a_repeated_call_is_recorded_once_and_other_outputs_again(engine):
    hooks, recorder, model = engine()
    attend(model, {})
    attend(model, {})
    hooks.here = EngineStep("teapot", 43, 0)
    attend(model, {})
    assert [call.operation["output"] for call in recorder.calls] == [0, 1]


def gemm_input(rows):
    return (torch.arange(rows * WIDTH) % 7 - 3).reshape(1, rows, WIDTH).bfloat16()


def test_gemm_inputs_are_those_before_the_call(engine):
    _, recorder, model = engine()
    x, layer = gemm_input(6), model.transformer_blocks[0].attn.to_q
    before = x.clone()
    output, _ = layer(x)
    expected = output.clone()
    x.zero_()
    [call] = recorder.of(N4096_K4096)
    assert torch.equal(call.inputs["A"], before[0]) and torch.equal(call.inputs["B"], layer.weight)
    assert torch.equal(call.outputs["C"], expected[0]) and call.generated is None
    assert call.operation["layer"] == "transformer_blocks.0.attn.to_q"


def test_gemm_streams_and_repeats(engine):
    hooks, recorder, model = engine()
    block = model.transformer_blocks[0]
    block.attn.to_q(gemm_input(6))
    block.attn.to_q(gemm_input(6))
    # The prefix projections run inside attend_sample.
    block.attn.local_attn.register_forward_pre_hook(lambda *_: block.attn.to_q(gemm_input(3)) and None)
    attend(model, {})
    block.attn.to_out[0](gemm_input(6))
    for rows in (6, 3, 3):
        block.img_mlp.out(torch.ones(1, rows, 2 * WIDTH).bfloat16())
    seen = [
        (call.operation["layer"].split(".", 2)[2], call.operation["phase"], call.inputs["A"].shape[0])
        for call in recorder.calls
        if "A" in call.inputs
    ]
    assert seen == [
        ("attn.to_q", "target", 6),
        ("attn.to_q", "prefix", 3),
        ("attn.to_out.0", "target", 6),
        ("img_mlp.out", "target", 6),
        ("img_mlp.out", "prefix", 3),
    ]
    assert not recorder.errors


def test_only_selected_layers_blocks_and_steps_of_gemms(engine):
    hooks, recorder, model = engine(layers=["attn.to_k"], block=1, gemm_steps=[3])
    for step in (0, 3):
        hooks.here = EngineStep("teapot", 42, step)
        for block in model.transformer_blocks:
            for name in ("attn.to_q", "attn.to_k"):
                block.get_submodule(name)(gemm_input(2))
    assert [call.operation["layer"] for call in recorder.calls] == ["transformer_blocks.1.attn.to_k"]
    assert recorder.counts == {N4096_K4096: 8}


def test_seeded_weights_carry_their_recipe_and_changed_ones_are_refused(engine):
    name = "transformer/transformer_blocks.0.attn.to_q.weight"
    recipe = recipe_for_std(0.1, 0, name, (WIDTH, WIDTH))
    hooks, recorder, model = engine(recipes={name: recipe})
    layer = model.transformer_blocks[0].attn.to_q
    bits = torch.frombuffer(bytearray(recipe_bytes(recipe)), dtype=torch.int16)
    layer.weight.data = bits.view(torch.bfloat16).reshape(WIDTH, WIDTH)
    layer(gemm_input(2))
    assert recorder.calls[0].generated == {"B": recipe.to_json()}
    hooks.verified.clear()
    layer.weight.data[3, 3] += 1
    hooks.here = EngineStep("teapot", 43, 0)
    layer(gemm_input(2))
    assert len(recorder.calls) == 1 and "its recipe" in recorder.errors[0]


def test_a_failing_recorder_is_reported_once_and_ends_capturing(engine):
    hooks, recorder, model = engine()
    recorder.record = lambda *a, **k: 1 / 0
    output, _ = model.transformer_blocks[0].attn.to_q(gemm_input(2))
    attend(model, {})
    assert output.shape == (1, 2, WIDTH)
    assert recorder.errors == ["division by zero"]
