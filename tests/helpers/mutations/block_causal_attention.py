"""Deliberate errors of the block-causal attention references: (definition, label, old, new)."""

EMPTY = "block_causal_attention_empty_prefix_h32_d128"
CACHED = "block_causal_attention_cached_prefix_h32_d128"

SCALE, SCALED = "SCALE = D**-0.5", ".mul_(SCALE)"
HIDDEN = "keys >= kv_end[block, None]"
SOFTMAX = "torch.softmax(scores, dim=-1)"
KEYS, VALUES = "torch.cat([k_prefix[:, head], k[:, head]])", "torch.cat([v_prefix[:, head], v[:, head]])"

MUTATIONS = [
    (EMPTY, "scale of head dimension 64", SCALE, "SCALE = 64**-0.5"),
    (EMPTY, "no scale", SCALED, ""),
    (EMPTY, "one key too many", HIDDEN, "keys > kv_end[block, None]"),
    (EMPTY, "image blocks causal too", HIDDEN, "keys > torch.arange(S)[block, None]"),
    (EMPTY, "nothing masked", HIDDEN, "keys >= S + 0 * kv_end[block, None]"),
    (EMPTY, "probabilities rounded to BF16", SOFTMAX, f"{SOFTMAX}.bfloat16().float()"),
    (EMPTY, "scores rounded to BF16", SOFTMAX, "torch.softmax(scores.bfloat16().float(), dim=-1)"),
    (EMPTY, "values of the neighbouring head", "v[:, head]", "v[:, head ^ 1]"),
    (CACHED, "scale of head dimension 64", SCALE, "SCALE = 64**-0.5"),
    (CACHED, "target before the prefix, keys only", KEYS, "torch.cat([k[:, head], k_prefix[:, head]])"),
    (CACHED, "keys as prefix values", "v_prefix[:, head]", "k_prefix[:, head]"),
    (
        CACHED,
        "last prefix row hidden",
        SOFTMAX,
        "torch.softmax(scores.index_fill(1, torch.tensor([P - 1]), -torch.inf), dim=-1)",
    ),
    (
        CACHED,
        "target causal",
        SOFTMAX,
        "torch.softmax(scores + torch.full((T, P + T), -torch.inf).triu(P + 1)[block], dim=-1)",
    ),
    (CACHED, "probabilities rounded to BF16", SOFTMAX, f"{SOFTMAX}.bfloat16().float()"),
]
