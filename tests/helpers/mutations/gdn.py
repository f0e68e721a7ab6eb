"""Deliberate errors in the gated delta references; their oracles must catch each one."""

DECODE, PREFILL = "gdn_decode_qk4_v8_d128_k_last", "gdn_prefill_qk4_v8_d128_k_last"
OLD_DECODE = "gated_delta_rule_decode_h16_hv48_dk128_dv128"
OLD_PREFILL = "gated_delta_rule_prefill_h48_dk128_dv128"
NAMES = [DECODE, PREFILL, OLD_DECODE, OLD_PREFILL]

_RECALL_BEFORE_DECAY = (
    "memory is read before the decay",
    "delta = beta[..., None] * (v - recalled)",
    "delta = beta[..., None] * (v - recalled / decay[..., None])",
)
_NOTHING_RECALLED = ("what is already stored is not subtracted", "(v - recalled)", "v")
_HEADS = (
    "query/key heads interleaved",
    "x.repeat_interleave(value_heads // x.shape[-2], dim=-2)",
    "x.repeat(*[1] * (x.dim() - 2), value_heads // x.shape[-2], 1)",
)

MUTATIONS = [
    (DECODE, *_RECALL_BEFORE_DECAY),
    (DECODE, *_NOTHING_RECALLED),
    (DECODE, *_HEADS),
    (DECODE, "state indexed [K, V]", "state.float(), keys", "state.float().mT, keys"),
    (DECODE, "output from the old state", "(new_state * queries[", "(state * queries["),
    (
        DECODE,
        "bias after the softplus",
        "softplus(a[:, 0].float() + dt_bias.float())",
        "(softplus(a[:, 0].float()) + dt_bias.float())",
    ),
    (DECODE, "scale dropped", "scale * (new_state", "(new_state"),
    (DECODE, "beta rounded to BF16", "torch.sigmoid(b[:, 0].float())", "torch.sigmoid(b[:, 0]).float()"),
    (PREFILL, *_RECALL_BEFORE_DECAY),
    (PREFILL, *_NOTHING_RECALLED),
    (PREFILL, *_HEADS),
    (PREFILL, "state indexed [K, V]", "state[sequence].float()", "state[sequence].float().mT"),
    (PREFILL, "every sequence starts from the first state", "else state[sequence].float()", "else state[0].float()"),
    (PREFILL, "an empty sequence keeps its state", "        if first == end:\n            continue\n", ""),
    (PREFILL, "A_log used as the rate", "-torch.exp(A_log.float())", "-A_log.float()"),
    (PREFILL, "no default scale", "float(scale or 1.0 / math.sqrt(key_dim))", "float(scale or 1.0)"),
    (PREFILL, "the last token is left out", "range(first, end)", "range(first, max(first + 1, end - 1))"),
    (OLD_DECODE, *_RECALL_BEFORE_DECAY),
    (OLD_DECODE, *_HEADS),
    (OLD_DECODE, "state indexed [V, K]", "advance(state, keys", "advance(state.mT, keys"),
    (OLD_DECODE, "no epsilon under the root", "+ EPSILON)", ")"),
    (
        OLD_DECODE,
        "keys not normalised",
        "(spread(normalised(x.float()), value_heads) for x in (q, k))",
        "(spread(f(x.float()), value_heads) for f, x in ((normalised, q), (torch.Tensor.float, k)))",
    ),
    (OLD_DECODE, "beta rounded to BF16", "torch.sigmoid(b.float())", "torch.sigmoid(b).float()"),
    (OLD_PREFILL, *_RECALL_BEFORE_DECAY),
    (OLD_PREFILL, *_NOTHING_RECALLED),
    (OLD_PREFILL, "linear decay", "torch.exp(g)", "g"),
    (OLD_PREFILL, "state indexed [V, K]", "current = initial_state[sequence]", "current = initial_state[sequence].mT"),
    (
        OLD_PREFILL,
        "an empty sequence is zeroed",
        "final_state[sequence] = current",
        "final_state[sequence] = current if end > first else 0.0",
    ),
    (OLD_PREFILL, "scale dropped", "scale * (current", "(current"),
]
