"""The hooks of LTX-2.5, driven by toy classes that make the engine's calls."""

import functools
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from helpers import toy_ltx_engine as toy
from helpers.toy_ltx_engine import Decoder, LocalAttention, Transformer, USPAttention, qkv
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.ltx.hooks import EngineStep, LtxHooks, mask_note, prepare_each, stage_place
from inference_kernels.models.ltx.spec import ATTENTIONS, AUDIO_DENSE, STAGES, VIDEO_DENSE

NEIGHBORHOOD = toy.LTX2VideoVaeNeighborhoodAttention


@pytest.fixture
def engine(monkeypatch):
    """build(transformer, decoder, **selection) -> (hooks, recorder); `hooks.here` is where the engine is."""

    def wrap(owner, name, hook):
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(lambda *args, **kwargs: hook(original, *args, **kwargs))
        monkeypatch.setattr(owner, name, wrapper)

    def build(transformer=None, decoder=None, **selection):
        recorder = toy.recorder(**selection)
        hooks = LtxHooks(recorder, lambda: hooks.here, lambda: "a kernel")
        hooks.here = EngineStep("teapot", 42, 1)
        if transformer:
            hooks.attach_transformer(transformer)
        if decoder:
            hooks.safely("attach", lambda: hooks.attach_decoder(decoder))
        wrap(LocalAttention, "forward", hooks.around_attention)
        wrap(USPAttention, "forward", hooks.around_attention)
        wrap(NEIGHBORHOOD, "project_qkv", hooks.around_projection)
        return hooks, recorder

    monkeypatch.setattr(toy.AttentionLayer, "seen", [])
    return build


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_is_a_call_of_its_definition(engine, reference, name):
    model = Transformer()
    _, recorder = engine(model)
    tensors = qkv(ATTENTIONS[name])
    expected = [tensor.clone() for tensor in tensors]
    output = model.attention(name)(*tensors, attn_mask=None)
    kept = output.clone()
    for buffer in (*tensors, output):
        buffer.zero_()
    [call] = recorder.calls
    assert not recorder.errors and call.definition == ATTENTIONS[name]
    assert list(call.inputs) == ["q", "k", "v"]
    assert all(torch.equal(found, wanted) for found, wanted in zip(call.inputs.values(), expected))
    assert torch.equal(call.outputs["o"], kept) and call.outputs["o"].is_contiguous()
    assert call.adaptations == ["mask: the engine passed none"]
    assert call.operation["layer"] == f"transformer_blocks.0.{name}"
    assert call.operation["phase"] == "denoise" and "math" in call.operation["call_path"]
    result = reference(call.definition)(*expected)
    torch.testing.assert_close(call.outputs["o"], result, rtol=0.016, atol=0.005)


def test_the_math_policy_holds_for_every_call_and_is_taken_back(engine):
    model = Transformer()
    hooks, _ = engine(model)
    for hooks.here in (EngineStep("teapot", 42, 1), EngineStep("teapot", 42, 3), None):
        for block in (0, 1):
            output = model.attention("attn1", block)(*qkv(VIDEO_DENSE))
            assert output.is_contiguous()
    assert toy.AttentionLayer.seen == [(False, False, True, False)] * 6
    layer = model.attention("attn1")
    assert layer.allow_cudnn_sdp and layer.attn_impl.allow_cudnn_sdp
    assert torch.backends.cuda.flash_sdp_enabled()


def test_the_policy_is_a_modality_s_own(engine):
    model = Transformer()
    _, recorder = engine(model, sdpa_backends={"video": "math", "audio": "default"})
    model.attention("audio_attn1")(*qkv(AUDIO_DENSE))
    model.attention("attn2")(*qkv(VIDEO_DENSE))
    assert toy.AttentionLayer.seen == [(True, True, True, True), (False, False, True, False)]
    assert "default backend" in recorder.calls[0].operation["call_path"]


def test_math_on_another_implementation_is_an_error_and_the_engine_goes_on(engine):
    class FlashAttentionImpl(toy.SDPAImpl):
        pass

    model = Transformer(implementation=FlashAttentionImpl)
    _, recorder = engine(model)
    output = model.attention("attn1")(*qkv(VIDEO_DENSE))
    assert output.shape == (1, 5, 32, 128) and not recorder.calls
    assert len(recorder.errors) == 1 and "torch_sdpa" in recorder.errors[0]


@pytest.mark.parametrize(
    "mask, words",
    [
        (torch.ones(1, 7), r"float32 \[1, 7\], 7 hidden"),
        (torch.zeros(1, 1, 1, 6), "7 keys"),
        (torch.zeros(7), "no mask"),
        (torch.ones(1, 7, dtype=torch.int64).index_fill(1, torch.tensor(3), 0), "1 hidden"),
        (torch.zeros(1, 1, 5, 7).index_fill(3, torch.tensor(0), -1e30), "5 hidden"),
        (torch.ones(1, 4, 7, dtype=torch.bool), "5 queries"),
        (torch.zeros(1, 1, 1, 1, 7), "no mask"),
    ],
)
def test_a_mask_that_hides_a_key_or_does_not_fit_is_refused(engine, mask, words):
    with pytest.raises(CaptureError, match=words):
        mask_note(mask, 5, 7)
    model = Transformer()
    _, recorder = engine(model)
    model.attention("attn2")(*qkv(VIDEO_DENSE), attn_mask=mask)
    assert not recorder.calls and len(recorder.errors) == 1


@pytest.mark.parametrize(
    "mask, form",
    [
        (torch.ones(1, 7, dtype=torch.int64), "int64 [1, 7], all true"),
        (torch.ones(1, 5, 7, dtype=torch.bool), "bool [1, 5, 7], all true"),
        (torch.zeros(1, 1, 1, 7, dtype=torch.bfloat16), "bfloat16 [1, 1, 1, 7], additive, all 0"),
    ],
)
def test_the_form_of_an_all_visible_mask_is_recorded(engine, mask, form):
    model = Transformer()
    _, recorder = engine(model)
    model.attention("attn2")(*qkv(VIDEO_DENSE), mask)
    assert not recorder.errors
    assert recorder.calls[0].adaptations == [f"mask dropped after checking that it shows every key: {form}"]


def test_strided_inputs_are_copied_and_noted(engine):
    model = Transformer()
    _, recorder = engine(model)
    q, k, v = qkv(AUDIO_DENSE)
    wide = torch.cat([q, q], dim=-1)[..., :64]
    model.attention("audio_attn1")(wide, k, v)
    call = recorder.calls[0]
    assert call.inputs["q"].is_contiguous() and torch.equal(call.inputs["q"], q)
    assert any(note.startswith("q: strides") for note in call.adaptations)


def test_other_owners_steps_blocks_layers_and_warm_up_are_not_captured(engine):
    model = Transformer()
    hooks, recorder = engine(model, layers=["attn1"])
    LocalAttention()(*qkv(VIDEO_DENSE))
    model.attention("attn1", 1)(*qkv(VIDEO_DENSE))
    model.attention("attn2")(*qkv(VIDEO_DENSE))
    hooks.here = EngineStep("teapot", 42, 5)
    model.attention("attn1")(*qkv(VIDEO_DENSE))
    assert not recorder.calls and recorder.counts == {VIDEO_DENSE: 3}
    hooks.here = None
    model.attention("attn1")(*qkv(VIDEO_DENSE))
    assert not recorder.calls and recorder.counts == {VIDEO_DENSE: 3}


def test_outputs_of_a_request_are_told_apart_and_repeats_are_not_recorded(engine):
    model = Transformer()
    hooks, recorder = engine(model)
    for hooks.here in (EngineStep("teapot", 42, 1), EngineStep("teapot", 42, 1), EngineStep("teapot", 43, 1)):
        model.attention("attn1")(*qkv(VIDEO_DENSE))
    assert [call.operation["output"] for call in recorder.calls] == [0, 1]


def test_every_stage_of_the_decoder_is_a_call_of_its_definition(engine):
    decoder = Decoder()
    hooks, recorder = engine(decoder=decoder)
    hooks.here = EngineStep("teapot", 43, 0)
    outputs = decoder((3, 4, 5))
    assert not recorder.errors and [call.definition for call in recorder.calls] == list(STAGES.values())
    for number, (name, call) in enumerate(zip(STAGES, recorder.calls)):
        heads = int(call.definition.split("_h")[1].split("_")[0])
        for shift, tensor in enumerate(call.inputs.values()):
            assert torch.equal(tensor, torch.full((1, 3, 4, 5, heads, 64), number + shift).bfloat16())
        assert torch.equal(call.outputs["o"].reshape(outputs[name].shape), outputs[name])
        assert call.operation == {
            "call_path": "LTX2VideoVaeNeighborhoodAttention.forward -> a kernel",
            "phase": "decode",
            "layer": f"decoder.{name}.0",
            "step": 0,
            "ranks_gathered": 1,
            "output": 1,
        }


def test_the_middle_block_of_a_stage_is_captured_and_chosen_stages_only(engine):
    decoder = Decoder(depth=4)
    _, recorder = engine(decoder=decoder, layers=["det_stages.2", "diff_blocks"])
    decoder((1, 2, 2))
    assert [call.operation["layer"] for call in recorder.calls] == ["decoder.det_stages.2.2", "decoder.diff_blocks.2"]
    assert sum(recorder.counts.values()) == 20


def test_a_decoder_with_another_window_is_an_error(engine):
    decoder = Decoder()
    decoder.decoder.diff_blocks[0].attn.kernel_size = (11, 11, 13)
    _, recorder = engine(decoder=decoder)
    decoder((1, 2, 2))
    assert not recorder.calls and "11x11x13" in recorder.errors[0]


def test_a_failing_recorder_is_reported_once_and_ends_capturing(engine):
    model, decoder = Transformer(), Decoder()
    _, recorder = engine(model, decoder)
    recorder.record = lambda *a, **k: 1 / 0
    model.attention("attn1")(*qkv(VIDEO_DENSE))
    decoder((1, 2, 2))
    assert recorder.errors == ["division by zero"]


def test_the_place_comes_from_the_stage_s_batch_and_the_context_s_step(engine, monkeypatch):
    module = ModuleType("forward_context")
    module.get_forward_context_or_none = lambda: module.context
    name = "sglang.multimodal_gen.runtime.managers.forward_context"
    for part in range(1, name.count(".") + 1):
        monkeypatch.setitem(sys.modules, ".".join(name.split(".")[:part]), ModuleType("package"))
    monkeypatch.setitem(sys.modules, name, module)
    hooks, recorder = engine()
    recorder.request = lambda: {"case": "teapot"}
    batch, seen = SimpleNamespace(seed=44, is_warmup=False), []

    def stage(owner, batch, fail):
        seen.append(stage_place(recorder, hooks.batch))
        return 1 / fail

    module.context = SimpleNamespace(current_timestep=4)
    hooks.around_stage(stage, "denoise", batch, 1)
    module.context = None
    with pytest.raises(ZeroDivisionError):
        hooks.around_stage(stage, "decode", batch, 0)
    hooks.around_stage(stage, "decode", SimpleNamespace(seed=1, is_warmup=True), 1)
    assert seen == [EngineStep("teapot", 44, 4), EngineStep("teapot", 44, 0), None]
    assert hooks.batch is None and stage_place(recorder, None) is None


def test_latents_of_several_outputs_are_prepared_one_by_one():
    calls = []
    result = prepare_each(None, lambda *args: calls.append(args) or len(calls), ["first", "second"], "flags")
    assert calls == [("first", "flags"), ("second", "flags")] and result == [1, 2]
