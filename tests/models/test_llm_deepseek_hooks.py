"""The attention and router hooks of DeepSeek V4.1, driven by small stand-ins of engine and libraries."""

import sys
from types import SimpleNamespace

import pytest
import torch

from helpers.llm_toys import Toy, batch, coded, drawn, hooked
from inference_kernels.capture.near_ties import exclude_near_tie
from inference_kernels.models.deepseek.hooks import DeepseekHooks
from inference_kernels.models.deepseek.spec import MIXED, ROUTER, SPARSE_128, SPARSE_640

SCALE = 512**-0.5


def attend(q, rows, valid, sink):
    """Attend in float64 with an explicit sink column. q [H, 512], rows [n, 512], valid [n]."""
    scores = (q.double() @ rows.double().T * SCALE).masked_fill(~valid, float("-inf"))
    weight = torch.cat([scores, sink.double()[:, None]], 1).softmax(-1)[:, :-1]
    return weight @ rows.double()


class ToyFlashMla:
    """`flash_mla_sparse_fwd` of the library, in float64."""

    @staticmethod
    def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v, attn_sink, topk_length=None, *, use_legacy):
        assert use_legacy and sm_scale == SCALE and d_v == 512
        out = torch.empty_like(q)
        for row in range(q.shape[0]):
            slots = indices[row, 0].long()
            valid = (
                (slots >= 0) if topk_length is None else (slots >= 0) & (torch.arange(slots.numel()) < topk_length[row])
            )
            out[row] = attend(q[row], kv[slots.clamp_min(0), 0], valid, attn_sink).bfloat16()
        return out, None, None


LAYER = SimpleNamespace(layer_id=1, tp_q_head_num=64)


def around_attention(toy: Toy, forward_batch, ratio: int, work) -> None:
    def forward_attention(self, layer, forward_batch, compress_ratio, attn_sink):
        return work()

    toy.forward(
        forward_batch,
        lambda: hooked(forward_attention, toy.hooks.around_attention)(
            None, LAYER, forward_batch, ratio, attn_sink=None
        ),
    )


@pytest.mark.parametrize("name, ratio, width", [(SPARSE_128, 0, 128), (SPARSE_640, 2, 640)])
def test_sparse_prefill_replays_although_the_workspace_is_reused(tmp_path, repository, name, ratio, width):
    toy = Toy(tmp_path, repository, DeepseekHooks, {name: 1})
    toy.case("case", 2, {"prefill": {name: [0]}})
    workspace, sink = drawn("kv", 40, 1, 512), drawn("sink", 64, dtype=torch.float32)
    q, lengths = drawn("q", 5, 64, 512), torch.tensor([1, 9, 30, 0, 0], dtype=torch.int32)
    indices = torch.full((5, 1, width), -1, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        indices[row, 0, :length] = torch.arange(length) * 7 % 40
    indices[2, 0, 4] = -1

    def sparse(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, *, use_legacy=True):
        result = ToyFlashMla.flash_mla_sparse_fwd(
            q, kv, indices, sm_scale, d_v, attn_sink, topk_length, use_legacy=use_legacy
        )
        kv.fill_(float("nan"))
        return result

    forward_batch = batch("prefill", 2, extend_seq_lens_cpu=[1, 2])
    around_attention(
        toy,
        forward_batch,
        ratio,
        lambda: hooked(sparse, toy.hooks.around_sparse_prefill)(
            q=q, kv=workspace, indices=indices, sm_scale=SCALE, attn_sink=sink, topk_length=lengths
        ),
    )
    (result,) = toy.validated()
    assert (result.definition, result.status) == (name, "pass"), result.reason
    (record,) = toy.records()
    assert "2 padding rows dropped" in record["adaptations"]


def decode_call() -> dict:
    fp8, fp8_scales = coded("p8", 6, 32, 512), coded("s8", 6, 32, 16, form="e8m0", low=125, levels=3)
    fp4, fp4_scales = coded("p4", 9, 8, 256, form="e2m1x2"), coded("s4", 9, 8, 32) & 0x7F
    join = [
        torch.cat([rows.flatten(1), scales.flatten(1)], 1) for rows, scales in ((fp8, fp8_scales), (fp4, fp4_scales))
    ]
    window, compressed = torch.full((3, 1, 128), -1), torch.full((3, 1, 512), -1)
    for row, length in enumerate((100, 3, 1)):
        window[row, 0, :length] = (torch.arange(length) * 5 + row * 32) % (6 * 32)
        compressed[row, 0, : length // 2 + 1] = torch.arange(length // 2 + 1) * 2 % 72
    compressed[0, 0, 7] = -1
    return {
        "q": drawn("q", 3, 1, 64, 512),
        "k_cache": join[0].view(6, 32, 1, 528).view(torch.float8_e4m3fn),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": None,
        "softmax_scale": SCALE,
        "indices": window.int(),
        "attn_sink": drawn("sink", 64, dtype=torch.float32),
        "topk_length": torch.tensor([100, 3, 1], dtype=torch.int32),
        "extra_k_cache": join[1].view(9, 8, 1, 288).view(torch.float8_e4m3fn),
        "extra_indices_in_kvcache": compressed.int(),
        "extra_topk_length": torch.tensor([51, 2, 1], dtype=torch.int32),
    }


def flash_mla_with_kvcache(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    tile_scheduler_metadata,
    softmax_scale=None,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
):
    raise AssertionError("the Blackwell kernel must not run")


def test_mixed_decode_through_the_substitute_replays(tmp_path, repository, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_mla", ToyFlashMla)
    toy = Toy(tmp_path, repository, DeepseekHooks, {MIXED: 1}, substitutions=["mixed_decode"])
    toy.case("case", 2, {"decode": {MIXED: [0]}})
    call = decode_call()
    # The third row is padding: the batch has two requests.
    around_attention(
        toy,
        batch("decode", 2, extend_seq_lens_cpu=None),
        2,
        lambda: hooked(flash_mla_with_kvcache, toy.hooks.around_decode)(**call),
    )
    (result,) = toy.validated()
    assert result.status == "pass", result.reason
    (record,) = toy.records()
    assert "1 padding rows dropped" in record["adaptations"]


def test_window_layers_take_the_substitute_without_being_recorded(monkeypatch, tmp_path, repository):
    monkeypatch.setitem(sys.modules, "flash_mla", ToyFlashMla)
    toy = Toy(tmp_path, repository, DeepseekHooks, {MIXED: 1}, substitutions=["mixed_decode"])
    toy.case("case", 3, {"decode": {MIXED: [0]}})
    call = decode_call() | {"extra_k_cache": None, "extra_indices_in_kvcache": None, "extra_topk_length": None}
    outputs = []
    around_attention(
        toy,
        batch("decode", 3, extend_seq_lens_cpu=None),
        0,
        lambda: outputs.append(hooked(flash_mla_with_kvcache, toy.hooks.around_decode)(**call)),
    )
    assert outputs[0][0].shape == (3, 1, 64, 512) and not toy.recorder.counts


# ---- router


def router_pass(toy: Toy, hidden, weight, bias, bias_vl, input_ids, bound=None, alter=None):
    gate = SimpleNamespace(weight=weight, e_score_correction_bias=bias, e_score_correction_bias_vl=bias_vl)
    config = SimpleNamespace(routed_scaling_factor=1.5, apply_routed_scaling_factor_on_output=False)
    moe = SimpleNamespace(
        gate=gate, layer_id=1, topk=SimpleNamespace(topk_config=config), config=SimpleNamespace(image_token_id=8000)
    )

    def forward(self, hidden_states):
        return hidden_states.double() @ weight.double().T

    def vision_topk(moe, logits, input_ids, num_token_non_padded=None):
        score = torch.nn.functional.softplus(logits).sqrt()
        rank = score + torch.where((input_ids == 8000)[:, None], bias_vl, bias)
        ids = rank.topk(6, -1).indices
        if alter:
            alter(ids)
        weights = score.gather(1, ids)
        return SimpleNamespace(topk_ids=ids.int(), topk_weights=(weights / weights.sum(1, keepdim=True)).float())

    def work():
        logits = hooked(forward, toy.hooks.around_gate)(gate, hidden)
        hooked(vision_topk, toy.hooks.around_topk)(moe, logits, input_ids, bound)

    toy.forward(batch("prefill", 1), work)


def router_inputs(rows: int):
    return (
        drawn("hidden", rows, 5120),
        drawn("gate", 384, 5120, std=0.02),
        drawn("bias", 384, std=0.05, dtype=torch.float32),
        drawn("bias_vl", 384, std=0.05, dtype=torch.float32),
    )


def test_router_replays_with_image_rows_and_padding(tmp_path, repository):
    toy = Toy(tmp_path, repository, DeepseekHooks, {ROUTER: 1})
    toy.case("case", 1, {"prefill": {ROUTER: [0]}})
    router_pass(toy, *router_inputs(7), torch.tensor([5, 8000, 8000, 9, 10, 11, 12]), bound=5)
    (result,) = toy.validated()
    assert result.status == "pass", result.reason
    (record,) = toy.records()
    assert "2 padding rows dropped" in record["adaptations"] and set(record["auxiliary"]) == {
        "engine_ids",
        "engine_weights",
    }


@pytest.mark.parametrize("nearly, excluded", [(True, True), (False, False)])
def test_calls_that_differ_by_a_near_tie_are_excluded_whole(tmp_path, repository, nearly, excluded):
    toy = Toy(tmp_path, repository, DeepseekHooks, {ROUTER: 1})
    toy.case("case", 1, {"prefill": {ROUTER: [0]}})
    hidden, weight, bias, bias_vl = router_inputs(3)
    score = torch.nn.functional.softplus(hidden[1].double() @ weight.double().T).sqrt() + bias
    seventh, sixth = score.topk(7).indices[[6, 5]].tolist()
    if nearly:
        bias[seventh] += (score[sixth] - score[seventh]).float() - 1e-6

    def alter(ids):
        ids[1, 5] = seventh

    router_pass(toy, hidden, weight, bias, bias_vl, torch.tensor([5, 6, 7]), alter=alter)
    toy.run.finish_case("case", [], 0.0)
    (result,) = toy.validated()
    assert result.status == "fail"
    assert exclude_near_tie(toy.run, repository, result, "cpu") is excluded
    left = [name for name in toy.run.manifest["files"] if name.startswith(("calls/", "blob/"))]
    assert (not left) is excluded and (toy.run.root / "excluded").exists() is excluded
