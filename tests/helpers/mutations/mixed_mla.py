"""Deliberate errors of the mixed-format decode reference: (definition, label, old, new)."""

NAME = "mixed_mla_decode_fp8_fp4_h64_d512_w128_c512"

NIBBLES = "levels[(codes & 15).long()], levels[(codes >> 4).long()]"
PAYLOAD = "content[:, :split].unflatten(1, (per_page, payload))[page, offset]"
SCALES = "content[:, split:].unflatten(1, (per_page, scales))[page, offset]"
SINK = " + torch.exp(attn_sink[:, None] - top)"
JOINED = "keys, valid = torch.cat((keys8, keys4), dim=1), torch.cat((valid8, valid4), dim=1)"
ERRORS = [
    ("nibble order swapped", NIBBLES, "levels[(codes >> 4).long()], levels[(codes & 15).long()]"),
    ("payload of a slot read beside its scales", PAYLOAD, "pages.view(torch.uint8)[page, offset, :payload]"),
    ("scales of a slot read beside its payload", SCALES, "pages.view(torch.uint8)[page, offset, payload:]"),
    ("scale of the slot before", SCALES, SCALES.replace("offset", "offset - 1")),
    (
        "FP4 scale read as E8M0",
        "scale.view(torch.float8_e4m3fn).float(), GROUP4",
        "scale.view(torch.float8_e8m0fnu).float(), GROUP4",
    ),
    ("FP8 scale twice too large", "torch.float8_e8m0fnu).float()", "torch.float8_e8m0fnu).float() * 2"),
    (
        "scales interleaved instead of one a block",
        "(values.unflatten(-1, (-1, group)) * scale[..., None]).flatten(-2)",
        "values * scale.repeat(1, group)",
    ),
    ("one slot more than the length", "columns < length", "columns <= length"),
    ("empty slots read the last slot", "(indices >= 0)", "(indices >= -1)"),
    ("slot 0 never read", "(indices >= 0)", "(indices > 0)"),
    ("compressed slots ignored", JOINED, "keys, valid = keys8, valid8"),
    ("sink dropped", SINK, ""),
    ("sink of the neighbouring head", SINK, SINK.replace("attn_sink", "attn_sink.roll(1)")),
    ("score scale dropped", "keys.transpose(1, 2)) * sm_scale", "keys.transpose(1, 2))"),
]
MUTATIONS = [(NAME, *error) for error in ERRORS]
