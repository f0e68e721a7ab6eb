"""The hooks of sparse index, sparse attention and gated delta rule, driven by small stand-ins of the engine.

Every recorded call is replayed with the repository's reference, so a wrong mapping of pages, rows, states or
ids fails by its values.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from helpers.llm_toys import Toy, batch, drawn, hooked
from inference_kernels.capture.ranks import Ranks
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.gdn.hooks import GdnHooks, kept_sequences, normalised
from inference_kernels.models.gdn.spec import DECODE, PREFILL
from inference_kernels.models.qwen.hooks import QwenHooks, block_ids, key_heads
from inference_kernels.models.qwen.spec import ATTENTION, INDEX

PAGE, SLOTS = 64, 64 * 64


class ToyPool:
    """Caches in which the pages of a sequence lie in descending order; NaN wherever nothing was written."""

    qsa_compressed_page_size, qsa_compress_ratio = 16, 4

    def __init__(self):
        self.keys, self.values = (torch.full((SLOTS, 2, 256), math.nan, dtype=torch.bfloat16) for _ in range(2))
        self.index = torch.full((SLOTS // 4, 1, 128), math.nan, dtype=torch.bfloat16)

    def get_qsa_compressed_k_buffer(self, layer):
        return self.index

    def get_key_buffer(self, layer):
        return self.keys

    def get_value_buffer(self, layer):
        return self.values


class ToySparse:
    """Sequences of given lengths in one pool; `layer_id` 3 is both the indexer's and the attention's."""

    layer_id, tp_q_head_num, scaling = 3, 24, 1 / 16

    def __init__(self, lengths: list[int], new: list[int]):
        self.pool, self.lengths, self.new = ToyPool(), lengths, new
        table = torch.full((len(lengths), max(lengths)), 7, dtype=torch.int32)  # stale slots behind the end
        last = SLOTS // PAGE - 1
        for sequence, length in enumerate(lengths):
            for page in range(-(-length // PAGE)):
                count = min(PAGE, length - page * PAGE)
                table[sequence, page * PAGE : page * PAGE + count] = torch.arange(count) + last * PAGE
                last -= 1
            used = table[sequence, :length].long()
            self.pool.keys[used] = drawn(f"k{sequence}", length, 2, 256)
            self.pool.values[used] = drawn(f"v{sequence}", length, 2, 256, std=0.5)
            blocks = used[: length // 4 * 4 : 4] // 4
            self.pool.index[blocks] = drawn(f"i{sequence}", length // 4, 1, 128)
        rows = [
            (sequence, position)
            for sequence, (length, count) in enumerate(zip(lengths, new))
            for position in range(length - count, length)
        ]
        self.sequences = torch.tensor([sequence for sequence, _ in rows], dtype=torch.int32)
        self.positions = torch.tensor([position for _, position in rows])
        self.metadata = SimpleNamespace(
            sequence_lengths=torch.tensor(lengths, dtype=torch.int32),
            token_to_batch_idx=self.sequences,
            token_slot_table=table,
            token_to_kv_pool=self.pool,
        )
        self.forward_metadata, self.token_to_kv_pool = self.metadata, self.pool

    def best(self, row: int, q: torch.Tensor) -> torch.Tensor:
        """Block ids of one row, best first, from the pool: not in the order of the definition."""
        sequence, blocks = int(self.sequences[row]), (int(self.positions[row]) + 1) // 4
        slots = self.metadata.token_slot_table[sequence, : blocks * 4 : 4].long() // 4
        keys = self.pool.index[slots, 0].double()
        scores = (q[row, :4].double() @ keys.T).relu().sum(0)
        return scores.sort(descending=True).indices[:512]

    def select(self, q: torch.Tensor, tokens: bool) -> torch.Tensor:
        out = torch.full((q.shape[0], 2051 if tokens else 512), -1, dtype=torch.int32)
        for row in range(self.sequences.numel()):
            ids, position = self.best(row, q), int(self.positions[row])
            if tokens:
                tail = torch.arange((position + 1) // 4 * 4, position + 1)
                ids = torch.cat([(ids[:, None] * 4 + torch.arange(4)).flatten(), tail])
            out[row, : ids.numel()] = ids.int()
        return out

    def attend(self, q: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(q.shape[0], 24, 256)
        ids = block_ids(selected, self.positions)
        for row in range(selected.shape[0]):
            position, blocks = int(self.positions[row]), ids[row][ids[row] >= 0].long()
            seen = torch.cat(
                [(blocks[:, None] * 4 + torch.arange(4)).flatten(), torch.arange((position + 1) // 4 * 4, position + 1)]
            )
            slots = self.metadata.token_slot_table[int(self.sequences[row]), seen].long()
            k, v = (pool[slots].repeat_interleave(12, 1).double() for pool in (self.pool.keys, self.pool.values))
            heads = q[row].view(24, 256).double()
            weight = torch.einsum("hd,nhd->hn", heads, k).mul(1 / 16).softmax(-1)
            out[row] = torch.einsum("hn,nhd->hd", weight, v)
        return out.flatten(1).bfloat16()

    # The engine's functions, with the parameters the hooks read.
    def forward_indexer(self, hidden, positions, forward_batch, indexer_metadata):
        raise NotImplementedError

    def select_prefill_tokens(self, q, query_positions):
        return self.select(q, tokens=True)

    def select_decode_tokens(self, q, query_positions, defer_expansion=True):
        return self.select(q, tokens=False)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, topk_indices=None):
        return self.attend(q, topk_indices)


def sparse_pass(toy: Toy, engine: ToySparse, phase: str, padding: int = 0) -> None:
    """One forward pass: indexer, then attention, through the hooks."""
    hooks, rows = toy.hooks, engine.sequences.numel()
    decode = phase == "decode"
    q_index = drawn("q_index", rows + padding, 8 if decode else 4, 128)
    q_index[:, 4:] = 0
    q = drawn("q", rows + padding, 24 * 256)
    forward_batch = batch(phase, len(engine.lengths), positions=engine.positions)

    def indexer(self, forward_batch, indexer_metadata):
        method = ToySparse.select_decode_tokens if decode else ToySparse.select_prefill_tokens
        hook = hooks.around_decode_index if decode else hooks.around_prefill_index
        return hooked(method, hook)(self, q_index, engine.positions)

    def work():
        selected = hooked(indexer, hooks.around_indexer)(engine, forward_batch, indexer_metadata=engine.metadata)
        hook = hooks.around_decode if decode else hooks.around_extend
        hooked(ToySparse.forward_extend, hook)(
            engine, q, None, None, engine, forward_batch, topk_indices=selected[:rows]
        )

    toy.forward(forward_batch, work)


@pytest.mark.parametrize(
    "phase, lengths, new",
    [
        ("prefill", [40, 130], [40, 7]),
        ("decode", [41, 131, 64], [1, 1, 1]),
        ("prefill", [2600], [6]),
        ("decode", [2600], [1]),
    ],
)
def test_sparse_calls_replay(tmp_path, repository, phase, lengths, new):
    toy = Toy(tmp_path, repository, QwenHooks, {INDEX: 3, ATTENTION: 3})
    toy.case("case", len(lengths), {phase: {INDEX: [0], ATTENTION: [0]}})
    sparse_pass(toy, ToySparse(lengths, new), phase)
    results = toy.validated()
    assert [result.status for result in results] == ["pass", "pass"], [result.reason for result in results]
    assert toy.recorder.counts == {"case": {INDEX: 1, ATTENTION: 1}}


def test_padding_rows_are_dropped_and_noted(tmp_path, repository):
    toy = Toy(tmp_path, repository, QwenHooks, {INDEX: 3, ATTENTION: 3})
    toy.case("case", 1, {"prefill": {INDEX: [0], ATTENTION: [0]}})
    sparse_pass(toy, ToySparse([40], [40]), "prefill", padding=8)
    assert {result.status for result in toy.validated()} == {"pass"}
    assert all("8 padding rows dropped" in record["adaptations"] for record in toy.records())


def test_a_selection_that_is_no_selection_fails_the_run(tmp_path, repository):
    toy = Toy(tmp_path, repository, QwenHooks, {INDEX: 3, ATTENTION: 3})
    toy.case("case", 1, {"prefill": {INDEX: [0]}})
    engine = ToySparse([40], [40])
    engine.select = lambda q, tokens: torch.zeros(q.shape[0], 2051, dtype=torch.int32)
    with pytest.raises(CaptureError):
        block_ids(engine.select(torch.zeros(40, 4, 128), True), engine.positions)
    hooks = toy.hooks

    def indexer(self, forward_batch, indexer_metadata):
        return hooked(lambda self, q, query_positions: engine.select(q, True), hooks.around_prefill_index)(
            engine, drawn("q", 40, 4, 128), engine.positions
        )

    forward_batch = batch("prefill", 1, positions=engine.positions)
    toy.forward(
        forward_batch,
        lambda: hooked(indexer, hooks.around_indexer)(engine, forward_batch, indexer_metadata=engine.metadata),
    )
    with pytest.raises(CaptureError, match="another selection"):
        toy.run.finish_case("case", [], 0.0)


def test_key_heads_of_four_ranks_with_copies():
    class Copies:
        @staticmethod
        def cat(tensor, dim):
            return torch.cat([tensor, tensor, tensor + 1, tensor + 1], dim)

    assert key_heads(Copies, torch.zeros(1, 2, 1, 4))[0, 0, :, 0].tolist() == [0.0, 1.0]
    assert key_heads(Ranks(), torch.zeros(1, 2, 2, 4)).shape == (1, 2, 2, 4)


# ---- gated delta rule


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
