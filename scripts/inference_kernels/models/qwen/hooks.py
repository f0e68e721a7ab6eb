"""Hooks inside SGLang's scheduler that record the sparse attention of Qwen 3.8 Flash-Next and its index.

Engine facts (SGLang 0.5.23): the indexer returns token ids in prefill (2048 of selected blocks and the
incomplete block's, order unspecified) and block ids in decode; a page of 64 tokens holds 16 index keys;
`token_slot_table` of the metadata gives the cache slot of every token of a sequence.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.llm_hooks import LanguageHooks, Target, arguments, attach, copied, refuse
from inference_kernels.capture.paging import logical_pages, remap_pages
from inference_kernels.capture.ranks import Ranks
from inference_kernels.models.qwen.spec import ATTENTION, INDEX

if TYPE_CHECKING:
    import torch

    from inference_kernels.capture.recorder import Recorder

TOPK, BLOCK, INDEX_HEADS, KV_HEADS, HEAD_DIM = 512, 4, 4, 2, 256
# Larger than every token id; int32.
NONE = 2**30
INDEXER = "sglang.srt.layers.attention.qsa.qsa_indexer.QSAIndexer"
BACKEND = "sglang.srt.layers.attention.qwen_sparse_attn_backend.QwenSparseAttnBackend"
ATTENTION_NEEDS = ("self", "q", "layer", "forward_batch", "topk_indices")
TARGETS = (
    Target(f"{INDEXER}._forward_impl", ("self", "forward_batch", "indexer_metadata"), "around_indexer"),
    Target(f"{INDEXER}.select_prefill_tokens", ("self", "q", "query_positions"), "around_prefill_index"),
    Target(
        f"{INDEXER}.select_decode_tokens", ("self", "q", "query_positions", "defer_expansion"), "around_decode_index"
    ),
    Target(f"{BACKEND}.forward_extend", ATTENTION_NEEDS, "around_extend"),
    Target(f"{BACKEND}.forward_decode", ATTENTION_NEEDS, "around_decode"),
)


class QwenHooks(LanguageHooks):
    targets = TARGETS
    metadata: Any = None

    def around_indexer(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `QSAIndexer._forward_impl`: keep the metadata that the selection inside it needs."""
        self.metadata = arguments(original, args, kwargs)["indexer_metadata"]
        try:
            return original(*args, **kwargs)
        finally:
            self.metadata = None

    def around_prefill_index(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._index("select_prefill_tokens", original, args, kwargs)

    def around_decode_index(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._index("select_decode_tokens", original, args, kwargs)

    def _index(self, method: str, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Record a selection; it runs after the cache's update, so the keys are there already."""
        call, metadata = arguments(original, args, kwargs), self.metadata
        rows = 0 if metadata is None else metadata.token_to_batch_idx.numel()
        keep = self.wants(INDEX, call["self"].layer_id, rows)
        before = self.safely(INDEX, lambda: copied({"q": call["q"]})) if keep else None
        result = original(*args, **kwargs)
        if before:
            self.safely(INDEX, lambda: self._record_index(method, metadata, call, before["q"], result))
        return result

    def _record_index(self, method: str, metadata: Any, call: dict, q: "torch.Tensor", result: "torch.Tensor") -> None:
        rows, pool = metadata.token_to_batch_idx.numel(), metadata.token_to_kv_pool
        layer, notes = call["self"].layer_id, []
        lengths, size = metadata.sequence_lengths.int(), pool.qsa_compressed_page_size
        pages, order = index_pages(metadata.token_slot_table, lengths, size)
        if not order.numel():
            raise refuse("at least one complete block of four tokens", f"lengths {lengths.tolist()}", INDEX)
        positions = call["query_positions"][:rows].int()
        ids = block_ids(result[:rows], positions)
        if q.shape[1] > INDEX_HEADS:
            notes.append(f"{q.shape[1] - INDEX_HEADS} zero heads of padding dropped from the queries")
        if result.shape[0] > rows:
            notes.append(f"{result.shape[0] - rows} padding rows dropped")
        if result.shape[1] != TOPK:
            notes.append("block ids recovered from the engine's token ids, whose other tokens are the incomplete block")
        notes += [
            "block ids sorted; the engine's order is in auxiliary",
            "index pages renumbered in order of first use, unused rows of a page kept",
        ]
        cache = pool.get_qsa_compressed_k_buffer(layer).reshape(-1, size, q.shape[-1])
        inputs = {
            "q_index": q[:rows, :INDEX_HEADS],
            "k_index_cache": cache[order],
            "page_table": pages,
            "seq_lens": lengths,
            "query_seq": metadata.token_to_batch_idx.int(),
            "query_pos": positions,
        }
        self.record(
            INDEX,
            inputs,
            {"block_ids": ids},
            layer=layer,
            notes=notes,
            path=f"QSAIndexer._forward_impl -> {method}",
            auxiliary={"engine_ids": result[:rows].int()},
        )

    def around_extend(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._attend("forward_extend", original, args, kwargs)

    def around_decode(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._attend("forward_decode", original, args, kwargs)

    def _attend(self, method: str, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Record an attention call; the caches are read after it, as it writes the new keys and values first."""
        call = arguments(original, args, kwargs)
        selected, layer = call["topk_indices"], call["layer"].layer_id
        rows = 0 if selected is None else selected.shape[0]
        keep = self.wants(ATTENTION, layer, rows)
        before = self.safely(ATTENTION, lambda: copied({"q": call["q"], "ids": selected})) if keep else None
        result = original(*args, **kwargs)
        if before:
            self.safely(ATTENTION, lambda: self._record_attention(method, call, before, result))
        return result

    def _record_attention(self, method: str, call: dict, before: dict, result: "torch.Tensor") -> None:
        backend, batch, layer = call["self"], call["forward_batch"], call["layer"]
        metadata, pool, rows = backend.forward_metadata, backend.token_to_kv_pool, before["ids"].shape[0]
        lengths, sequences = metadata.sequence_lengths.int(), metadata.token_to_batch_idx[:rows].int()
        if method == "forward_decode":
            positions = lengths[:rows] - 1
        else:
            positions = (batch.positions if batch.positions.ndim == 1 else batch.positions[0])[:rows].int()
        ids = block_ids(before["ids"], positions)
        size = pool.qsa_compressed_page_size * pool.qsa_compress_ratio
        pages, order = reached_pages(metadata.token_slot_table, ids, sequences, positions, size)
        q, output = (tensor.reshape(-1, layer.tp_q_head_num, HEAD_DIM)[:rows] for tensor in (before["q"], result))
        caches = [
            buffer.reshape(-1, size, *buffer.shape[1:])[order]
            for buffer in (pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id))
        ]
        notes = [
            f"pages of {size} tokens renumbered in order of first use; those that no row reads are left "
            "out and are -1 in page_table",
            "block ids sorted",
        ]
        if before["q"].shape[0] > rows:
            notes.append(f"{before['q'].shape[0] - rows} padding rows dropped")
        ranks = self.ranks
        k_cache, v_cache = (key_heads(ranks, cache) for cache in caches)
        inputs = {
            "q": ranks.cat(q, 1),
            "k_cache": k_cache,
            "v_cache": v_cache,
            "block_ids": ids,
            "page_table": pages,
            "seq_lens": lengths,
            "query_seq": sequences,
            "query_pos": positions,
            "sm_scale": float(layer.scaling),
        }
        self.record(
            ATTENTION,
            inputs,
            {"output": ranks.cat(output, 1)},
            layer=layer.layer_id,
            notes=notes,
            path=f"HybridLinearAttnBackend -> QwenSparseAttnBackend.{method}",
        )


def key_heads(ranks: Ranks, cache: "torch.Tensor") -> "torch.Tensor":
    """Join the key heads of a cache [pages, size, heads, dim]; ranks beyond the number of heads hold copies."""
    whole = ranks.cat(cache, 2)
    return whole[:, :, :: max(1, whole.shape[2] // KV_HEADS)]


def block_ids(selected: "torch.Tensor", positions: "torch.Tensor") -> "torch.Tensor":
    """Return the engine's selection as int32 [rows, 512], increasing, then -1.

    selected: block ids [rows, 512], or token ids [rows, 2048 + 3], any order, -1 for none. positions: int
    [rows]. CaptureError unless each row holds min(512, complete blocks) different complete blocks and, if
    token ids, all four tokens of each and exactly those of the incomplete block.
    """
    import torch

    complete = ((positions + 1) // BLOCK)[:, None]
    count = complete.clamp(max=TOPK)
    ordered = torch.where(selected < 0, NONE, selected).int().sort(1).values
    first = ordered if selected.shape[1] == TOPK else ordered[:, : TOPK * BLOCK : BLOCK] // BLOCK
    ids = torch.where(torch.arange(TOPK, device=first.device) < count, first, NONE)
    lanes = torch.arange(BLOCK, device=first.device, dtype=torch.int32)
    if selected.shape[1] == TOPK:
        expected = ids
    else:
        body = torch.where(ids[..., None] < NONE, ids[..., None] * BLOCK + lanes, NONE).flatten(1)
        tail = complete * BLOCK + lanes[: BLOCK - 1]
        expected = torch.cat([body, torch.where(tail <= positions[:, None], tail, NONE)], 1).sort(1).values
    real = ids < NONE
    distinct = (ids[:, 1:] > ids[:, :-1]) | ~real[:, 1:]
    if not (
        torch.equal(ordered, expected.int()) and distinct.all() and (ids[real] < complete.expand_as(ids)[real]).all()
    ):
        raise refuse("different complete blocks, and the tokens of the incomplete one", "another selection", INDEX)
    return torch.where(real, ids, -1).int()


def index_pages(
    slot_table: "torch.Tensor", lengths: "torch.Tensor", size: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Find every page with a complete block: table [sequences, pages] in new numbers, -1 beyond; cache pages.

    slot_table: [sequences, tokens] cache slots of tokens. size: index keys of a page, each of four tokens.
    """
    import torch

    physical = logical_pages(slot_table, size * BLOCK)
    needed = -(-(lengths // BLOCK) // size)
    width = max(1, int(needed.max()))
    column = torch.arange(width, device=physical.device)
    return remap_pages(torch.where(column < needed[:, None], physical[:, :width], -1))


def reached_pages(
    slot_table: "torch.Tensor", ids: "torch.Tensor", sequences: "torch.Tensor", positions: "torch.Tensor", size: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Find the pages that some row reads: of its blocks, and of its incomplete block if there is one."""
    import torch

    physical = logical_pages(slot_table, size)
    reached = torch.zeros_like(physical, dtype=torch.bool)
    rows = sequences.long()[:, None].expand_as(ids)
    real = ids >= 0
    reached[rows[real], ids[real].long() * BLOCK // size] = True
    tail = (positions + 1) % BLOCK != 0
    reached[sequences[tail].long(), positions[tail].long() // size] = True
    return remap_pages(torch.where(reached, physical, -1))


def register(recorder: "Recorder") -> None:
    attach(QwenHooks(recorder))
