"""Deliberate errors of the sparse MLA prefill references: (definition, label, old, new)."""

NAMES = ["sparse_mla_prefill_bf16_h64_d512_s128", "sparse_mla_prefill_bf16_h64_d512_s640"]

SINK = " + torch.exp(attn_sink[:, None] - top)"
ERRORS = [
    ("one slot more than topk_length", "columns < topk_length", "columns <= topk_length"),
    ("topk_length ignored", "(columns < topk_length[rows, None]) & ", ""),
    ("empty slots read the last workspace row", "(slots >= 0)", "(slots >= -1)"),
    ("first workspace row never read", "(slots >= 0)", "(slots > 0)"),
    ("last workspace row never read", "(slots < T)", "(slots < T - 1)"),
    ("sink dropped", SINK, ""),
    ("sink scaled like a score", SINK, " + torch.exp(attn_sink[:, None] * sm_scale - top)"),
    ("sink of the neighbouring head", SINK, SINK.replace("attn_sink", "attn_sink.roll(1)")),
    ("score scale dropped", "keys.transpose(1, 2)) * sm_scale", "keys.transpose(1, 2))"),
    ("probabilities rounded to BF16", "torch.bmm(weights, keys)", "torch.bmm(weights.bfloat16().float(), keys)"),
]
MUTATIONS = [(name, *error) for name in NAMES for error in ERRORS]
