"""Deliberate errors of the 3-D neighborhood attention references: (definition, label, old, new)."""

NAMES = {  # name: (heads, window)
    "neighborhood_attention_3d_h32_d64_w3x7x7": (32, (3, 7, 7)),
    "neighborhood_attention_3d_h16_d64_w3x7x7": (16, (3, 7, 7)),
    "neighborhood_attention_3d_h8_d64_w3x5x5": (8, (3, 5, 5)),
    "neighborhood_attention_3d_h4_d64_w11x11x11": (4, (11, 11, 11)),
}

SOFTMAX = "torch.softmax(scores, dim=-1)"
VISIBLE = "visible = (keys >= start) & (keys < start + window)"
ERRORS = [
    ("scaled a second time", "scores = _heads_first(q[queries])", "scores = D**-0.5 * _heads_first(q[queries])"),
    ("window shifted by one", "i - window // 2", "i - window // 2 + 1"),
    ("window one key short", "keys < start + window", "keys < start + window - 1"),
    ("window truncated at borders", VISIBLE, "visible = (keys - torch.tensor(queries)[:, None]).abs() <= window // 2"),
    ("whole key box visible", VISIBLE, "visible = (keys >= low) & (keys < start + length)"),
    ("mask reversed along X", "x[:, None, None, :]\n", "x[:, None, None, :].flip(3)\n"),
    ("values of the neighbouring head", "@ _heads_first(v[keys])", "@ _heads_first(v[keys]).roll(1, 0)"),
    ("probabilities rounded to BF16", SOFTMAX, f"{SOFTMAX}.bfloat16().float()"),
]
MUTATIONS = [(name, *error) for name in NAMES for error in ERRORS]
