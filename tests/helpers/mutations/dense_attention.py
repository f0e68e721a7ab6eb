"""Deliberate errors of the dense attention references: (definition, label, old, new)."""

VIDEO, AUDIO = "dense_attention_noncausal_h32_d128", "dense_attention_noncausal_h32_d64"

SOFTMAX = "torch.softmax(scores, dim=-1)"
ERRORS = [
    ("scale of another head dimension", "SCALE = D**-0.5", "SCALE = 96**-0.5"),
    ("no scale", ".mul_(SCALE)", ""),
    ("causal", SOFTMAX, "torch.softmax(scores + torch.full((Nq, Nk), -torch.inf).triu(1)[block], dim=-1)"),
    ("last key hidden", SOFTMAX, "torch.softmax(scores.index_fill(1, torch.tensor([Nk - 1]), -torch.inf), dim=-1)"),
    ("keys of the first sample", "k[sample, :, head]", "k[0, :, head]"),
    ("values of the neighbouring head", "v[sample, :, head]", "v[sample, :, head ^ 1]"),
    ("probabilities rounded to BF16", SOFTMAX, f"{SOFTMAX}.bfloat16().float()"),
    ("scores rounded to BF16", SOFTMAX, "torch.softmax(scores.bfloat16().float(), dim=-1)"),
]
MUTATIONS = [(name, *error) for name in (VIDEO, AUDIO) for error in ERRORS]
