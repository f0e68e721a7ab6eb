"""The hooks of sparse index and sparse attention, driven by small stand-ins of the engine.

Every recorded call is replayed with the repository's reference, so a wrong mapping of pages, rows or ids fails by
its values.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from helpers.llm_toys import Toy, batch, drawn, hooked
from inference_kernels.capture.ranks import Ranks
from inference_kernels.core.errors import CaptureError
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
        table = torch.full((len(lengths), max(lengths)), 7, dtype=torch.int32)  # stale slots after the end
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
        """Return the block ids of one row, best first, which is not the definition's order."""
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
    """Run one forward pass through the hooks: indexer, then attention."""
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
