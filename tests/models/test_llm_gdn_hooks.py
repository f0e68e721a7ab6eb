"""The hooks of the gated delta rule, driven by a small stand-in of the engine.

Every recorded call is replayed with the repository's reference, so a wrong mapping of rows or states fails by its
values.
"""

import math

import pytest
import torch

from helpers.llm_toys import Toy, batch, drawn, hooked
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.gdn.hooks import GdnHooks, kept_sequences, normalised
from inference_kernels.models.gdn.spec import DECODE, PREFILL


class ToyGdn:
    """A state pool updated in place, one output buffer for all calls, a layer called through `.forward()`."""

    layer_id = 1

    def __init__(self):
        self.states = drawn("states", 6, 8, 128, 128, std=0.2, dtype=torch.float32)
        self.A_log = torch.nn.Parameter(torch.linspace(0.2, 2.5, 8))
        self.dt_bias = torch.nn.Parameter(torch.linspace(-5, -2, 8).bfloat16())
        self.buffer = torch.full((1, 64, 8, 128), math.nan, dtype=torch.bfloat16)

    def step(self, slot, q, k, v, a, b):
        """Advance one state by one token; q, k float32 [4, 128]; returns bfloat16 [8, 128]."""
        decay = torch.exp(-self.A_log.exp() * torch.nn.functional.softplus(a.float() + self.dt_bias.float()))
        state, key = self.states[slot], k.repeat_interleave(2, 0)
        state.mul_(decay[:, None, None])
        recalled = torch.einsum("hvk,hk->hv", state, key)
        state += torch.einsum("hv,hk->hvk", b.float().sigmoid()[:, None] * (v.float() - recalled), key)
        return (torch.einsum("hvk,hk->hv", state, q.repeat_interleave(2, 0)) * 128**-0.5).bfloat16()

    def prepare(self, q, k, v):
        return normalised(q), normalised(k), v.contiguous()


def gdn_prefill(toy: Toy, engine: ToyGdn, slots: list[int], bounds: list[int], rows: int) -> None:
    hooks, indices, offsets = toy.hooks, torch.tensor(slots), torch.tensor(bounds, dtype=torch.int32)
    mixed = drawn("mixed", rows, 2048)
    q, k, v = (part.unflatten(-1, (-1, 128))[None] for part in mixed.split([512, 512, 1024], -1))
    gates = {name: drawn(name, rows, 8) for name in ("a", "b")}

    def kernel(self, q, ssm_states, cache_indices, query_start_loc):
        nq, nk, nv = hooked(lambda q, k, v: engine.prepare(q, k, v), hooks.around_prepare)(q[0], k[0], v[0])
        out = engine.buffer[:, :rows]
        for slot, first, end in zip(slots, bounds, bounds[1:]):
            for t in range(first, end):
                out[0, t] = engine.step(slot, nq[t].float(), nk[t].float(), nv[t], gates["a"][t], gates["b"][t])
        return out, None, None

    def forward_extend(self, layer, forward_batch, mixed_qkv, a, b):
        return hooked(kernel, hooks.around_prefill)(
            self, q, ssm_states=engine.states, cache_indices=indices, query_start_loc=offsets
        )

    forward_batch = batch("prefill", len(slots))
    toy.forward(
        forward_batch,
        lambda: hooked(forward_extend, hooks.around_layer)(
            engine, engine, forward_batch, mixed, gates["a"], gates["b"]
        ),
    )


def gdn_decode(toy: Toy, engine: ToyGdn, slots: list[int], packed: bool) -> None:
    hooks, indices, rows = toy.hooks, torch.tensor(slots, dtype=torch.int64), len(slots)
    mixed = drawn("decode", rows, 2048)
    q, k, v = (part.unflatten(-1, (-1, 128))[None] for part in mixed.split([512, 512, 1024], -1))
    gates = {name: drawn(name, rows, 8) for name in ("a", "b")}

    def run():
        out = engine.buffer[:, :rows]
        for row, slot in enumerate(slots):
            unit_q, unit_k = (torch.nn.functional.normalize(x[0, row].float(), dim=-1) for x in (q, k))
            out[0, row] = engine.step(slot, unit_q, unit_k, v[0, row], gates["a"][row], gates["b"][row])
        return out

    def decode(self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices):
        return run()

    def packed_decode(self, mixed_qkv, a, b, *, A_log, dt_bias, ssm_states, cache_indices):
        return run()

    def forward_decode(self, layer, forward_batch):
        shared = {
            "A_log": engine.A_log,
            "dt_bias": engine.dt_bias,
            "ssm_states": engine.states,
            "cache_indices": indices,
        }
        if packed:
            return hooked(packed_decode, hooks.around_packed_decode)(self, mixed, gates["a"], gates["b"], **shared)
        return hooked(decode, hooks.around_decode)(self, q, k, v, gates["a"], gates["b"], **shared)

    forward_batch = batch("decode", rows)
    toy.forward(forward_batch, lambda: hooked(forward_decode, hooks.around_layer)(engine, engine, forward_batch))


@pytest.fixture
def gdn(tmp_path, repository) -> Toy:
    toy = Toy(tmp_path, repository, GdnHooks, {PREFILL: 1, DECODE: 1})
    toy.case("case", 2, {"prefill": {PREFILL: [0]}, "decode": {DECODE: [0, 1]}})
    return toy


def test_states_updated_in_place_replay_with_their_values_before_the_call(gdn):
    engine = ToyGdn()
    gdn_prefill(gdn, engine, [4, 2], [0, 5, 12], 12)
    for packed in (False, True):
        gdn_decode(gdn, engine, [4, 2], packed)
    results = gdn.validated()
    assert [result.status for result in results] == ["pass"] * 3, [result.reason for result in results]
    assert {record["operation"]["step"] for record in gdn.records()} == {0, 1}


def test_padding_rows_and_empty_sequences_are_dropped(gdn):
    engine = ToyGdn()
    gdn_prefill(gdn, engine, [4, -1, 3, 2], [0, 5, 7, 7, 9], 12)
    gdn_decode(gdn, engine, [4, -1], False)
    results = gdn.validated()
    assert [result.status for result in results] == ["pass"] * 2, [result.reason for result in results]
    notes = [note for record in gdn.records() for note in record["adaptations"]]
    assert {"2 padding or empty sequences dropped", "2 padding rows dropped", "1 padding rows dropped"} <= set(notes)


def test_zero_token_batches_are_counted_and_skipped(gdn):
    engine = ToyGdn()
    gdn_prefill(gdn, engine, [], [0], 0)
    gdn_decode(gdn, engine, [], True)
    assert gdn.recorder.counts["case"] == {PREFILL: 1, DECODE: 1} and not gdn.run.calls()
    with pytest.raises(CaptureError, match="none of gdn_prefill_qk4_v8_d128_k_last"):
        gdn.run.require_operators([PREFILL])


def test_partial_batches_and_other_layers_are_not_kept(gdn):
    engine = ToyGdn()
    gdn_decode(gdn, engine, [4], False)
    engine.layer_id = 2
    gdn_decode(gdn, engine, [4, 2], False)
    assert not gdn.run.calls() and gdn.recorder.counts["case"][DECODE] == 2


def test_passes_of_some_of_the_requests_are_counted_on_their_own(tmp_path, repository):
    toy, engine = Toy(tmp_path, repository, GdnHooks, {PREFILL: 1, DECODE: 1}), ToyGdn()
    toy.case("case", 3, {"decode": {DECODE: [1]}, "decode 2": {DECODE: [0]}})
    for slots in ([4, 2, 1], [4, 2, 1], [4, 2], [4, 2], [4]):
        gdn_decode(toy, engine, slots, False)
    assert [result.status for result in toy.validated()] == ["pass"] * 2
    found = {
        (item["operation"]["batch"], item["operation"]["step"], item["operation"]["phase"]) for item in toy.records()
    }
    assert found == {(3, 1, "decode"), (2, 0, "decode")}


def test_nothing_is_seen_outside_a_case(tmp_path, repository):
    toy = Toy(tmp_path, repository, GdnHooks, {PREFILL: 1, DECODE: 1})
    gdn_decode(toy, ToyGdn(), [4, 2], False)
    assert not toy.recorder.counts and not toy.run.calls()


def test_kept_sequences():
    kept = kept_sequences(torch.tensor([7, -1, 5]), torch.tensor([0, 2, 3, 5]))
    assert kept["slots"].tolist() == [7, 5] and kept["rows"].tolist() == [0, 1, 3, 4]
    assert kept["cu_seqlens"].tolist() == [0, 2, 4] and kept["cu_seqlens"].dtype == torch.int64
