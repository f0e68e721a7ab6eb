"""Plain PyTorch stand-ins for library functions that the Qwen solutions call, to test the adapters on a CPU.

Each does what its library documents for the arguments the adapters pass, and nothing else.
"""

import sys
from types import ModuleType

import torch

QSA = "sglang.srt.layers.attention.qsa"
MODULES = {}


def stand_in(module: str):
    def register(function):
        MODULES.setdefault(module, {})[function.__name__] = function
        return function

    return register


def install(monkeypatch) -> None:
    """Put every stand-in where the adapters import it from."""
    for name, functions in MODULES.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:count]))
            module.__path__ = []
            monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(functions)


@stand_in("flash_attn.cute.interface")
def flash_attn_varlen_func(*, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal):
    output, group = torch.empty_like(q), q.shape[1] // k.shape[1]
    assert max_seqlen_q == 1 and torch.equal(cu_seqlens_q, torch.arange(len(q) + 1, dtype=torch.int32))
    for row, (first, end) in enumerate(zip(cu_seqlens_k.tolist(), cu_seqlens_k[1:].tolist())):
        keys, values = (x[first:end].float().repeat_interleave(group, dim=1) for x in (k, v))
        assert end - first <= max_seqlen_k
        weights = torch.softmax(torch.einsum("hd,nhd->hn", q[row].float(), keys) * softmax_scale, dim=-1)
        output[row] = torch.einsum("hn,nhd->hd", weights, values)
    return output, None


@stand_in(f"{QSA}.kernel")
def expand_qsa_block_indices(block_indices, query_positions, sequence_lengths, compress_ratio, token_topk):
    rows = []
    for blocks, position in zip(block_indices.tolist(), query_positions.tolist()):
        tokens = [block * compress_ratio + lane for block in blocks if block >= 0 for lane in range(compress_ratio)]
        tokens += range((position + 1) // compress_ratio * compress_ratio, position + 1)
        rows.append(tokens + [-1] * (token_topk + compress_ratio - 1 - len(tokens)))
    assert len(sequence_lengths) == len(rows)
    return torch.tensor(rows, dtype=torch.int32)


@stand_in(f"{QSA}.sparse_attn")
def sparse_gqa_paged_prefill_triton(q, k_cache, v_cache, slot_table, indices, cu_q, kv_lens, scale, *, max_q):
    assert max_q == 1 and len(cu_q) == len(q) + 1 and len(kv_lens) == len(q)
    slots = [slot_table[0, row[row >= 0].long()].long() for row in indices]
    lengths = torch.tensor([0, *map(len, slots)]).cumsum(0)
    gathered = torch.cat(slots)
    return flash_attn_varlen_func(
        q=q,
        k=k_cache[gathered],
        v=v_cache[gathered],
        cu_seqlens_q=cu_q,
        cu_seqlens_k=lengths,
        max_seqlen_q=1,
        max_seqlen_k=indices.shape[1],
        softmax_scale=scale,
        causal=True,
    )[0]


@stand_in(f"{QSA}.sparse_attn")
def qwen_sparse_fa2_cu_seqlens_triton(seq_lens, indices, counts, cu_k, batch, topk):
    counts.copy_(((indices >= 0) & (indices < seq_lens[:, None])).sum(1))
    cu_k.copy_(torch.nn.functional.pad(counts.cumsum(0), (1, 0)))
    assert (batch, topk) == indices.shape


@stand_in(f"{QSA}.sparse_attn")
def qwen_sparse_kv_extraction_compact_triton(
    k, v, req_to_token, req_indices, indices, seq_lens, cu_k, out_k, out_v, batch, topk
):
    for row, (first, end) in enumerate(zip(cu_k.tolist(), cu_k[1:].tolist())):
        slots = req_to_token[req_indices[row], indices[row, : end - first].long()].long()
        out_k[first:end], out_v[first:end] = k[slots], v[slots]


@stand_in(f"{QSA}.mqa")
def qsa_mqa_decode(q, k_cache, page_table, context_lens, max_model_len, *, min_scored_len):
    keys = k_cache[page_table.long()].flatten(1, 3).double()
    scores = torch.relu(torch.einsum("rhd,rnd->rhn", q.double(), keys)).sum(1) / q.shape[2] ** 0.5
    unset = context_lens[:, None].le(min_scored_len) | (torch.arange(max_model_len) >= context_lens[:, None])
    return scores.float().masked_fill(unset, float("nan"))


@stand_in(f"{QSA}.mqa")
def qsa_mqa_prefill_relative(q, k, row_starts, row_ends, width):
    scores = torch.full((len(q), width), float("nan"))
    for row, (first, end) in enumerate(zip(row_starts.tolist(), row_ends.tolist())):
        products = torch.relu(q[row].double() @ k[first:end, 0].double().T).sum(0)
        scores[row, : end - first] = products / q.shape[2] ** 0.5
    return scores


@stand_in("sglang.kernels.ops.attention.fast_topk")
def fast_topk(score, lengths, topk):
    rows = []
    for values, length in zip(score, lengths.tolist()):
        order = (
            list(range(length))
            if length <= topk
            else values[:length].sort(descending=True, stable=True).indices[:topk].flip(0).tolist()
        )
        rows.append(order + [-1] * (topk - len(order)))
    return torch.tensor(rows, dtype=torch.int32)


def advance(state, q, k, v, decay, beta, scale):
    """One token of every row: state [rows, heads, V, K] in place, q, k [rows, key heads, K] -> output."""
    q, k = (x.float().repeat_interleave(v.shape[1] // x.shape[1], dim=1) for x in (q, k))
    state *= decay[..., None, None]
    delta = beta[..., None] * (v.float() - torch.einsum("rhvk,rhk->rhv", state, k))
    state += delta[..., None] * k[..., None, :]
    return scale * torch.einsum("rhvk,rhk->rhv", state, q)


def gates(A_log, a, dt_bias, b):
    rate = A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    return torch.exp(-rate), torch.sigmoid(b.float())


@stand_in("flashinfer.gdn_decode")
def gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm):
    assert not use_qk_l2norm
    decay, beta = gates(A_log, a[:, 0], dt_bias, b[:, 0])
    output.copy_(advance(state, q[:, 0], k[:, 0], v[:, 0], decay, beta, scale)[:, None])
    return output, state


@stand_in("flashinfer.gdn_prefill")
def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale,
    initial_state,
    output_final_state,
    cu_seqlens,
    use_qk_l2norm_in_kernel,
    output,
    output_state,
):
    assert output_final_state and not use_qk_l2norm_in_kernel
    output_state.copy_(initial_state)  # an empty sequence carries its state through
    for sequence, (first, end) in enumerate(zip(cu_seqlens.tolist(), cu_seqlens[1:].tolist())):
        for t in range(first, end):
            here = slice(t, t + 1)
            output[here] = advance(
                output_state[sequence : sequence + 1], q[here], k[here], v[here], g[here], beta[here], scale
            )
    return output, output_state


@stand_in("sglang.kernels.ops.attention.fla.fused_recurrent")
def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices, use_qk_l2norm_in_kernel
):
    assert not use_qk_l2norm_in_kernel and ssm_state_indices.tolist() == list(range(len(a)))
    decay, beta = gates(A_log, a, dt_bias, b)
    value_heads, size = initial_state.shape[1:3]
    q, k, v = mixed_qkv.unflatten(1, (-1, size)).tensor_split(
        [(mixed_qkv.shape[1] // size - value_heads) // 2, mixed_qkv.shape[1] // size - value_heads], dim=1
    )
    out.copy_(advance(initial_state, q, k, v, decay, beta, scale)[:, None])
