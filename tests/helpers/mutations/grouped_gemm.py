"""Deliberate errors of the grouped GEMM references: (definition, label, old, new)."""

NAMES = [
    "grouped_gemm_fp8_fp4_e384_n4608_k5120_g32",
    "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32",
    "grouped_gemm_fp8_fp4_e384_n2304_k5120_g32",
]

SCALED = "(values.unflatten(-1, (-1, GROUP)) * powers[..., None]).flatten(-2)"
ERRORS = [
    ("nibble order swapped", "levels[byte & 15], levels[byte >> 4]", "levels[byte >> 4], levels[byte & 15]"),
    ("sign bit of FP4 ignored", "tuple(-level for", "tuple(level for"),
    ("largest FP4 level wrong", "4.0, 6.0)", "4.0, 5.0)"),
    ("E8M0 read as E4M3", "torch.float8_e8m0fnu", "torch.float8_e4m3fn"),
    ("scales interleaved instead of one a block", SCALED, "values * powers.repeat(1, GROUP)"),
    ("scales of the neighbouring block", SCALED, SCALED.replace("powers", "powers.roll(1, -1)")),
    ("weight of the expert before", "_e2m1(b[expert])", "_e2m1(b[expert - 1])"),
    ("weight scales of expert 0", "b_scale[expert]", "b_scale[0]"),
    ("activation scales of the first rows", "a_scale[rows]", "a_scale[: rows.stop - rows.start]"),
    (
        "result truncated instead of rounded",
        "a_scale[rows]) @ weight",
        "a_scale[rows]).matmul(weight).view(torch.int32).bitwise_and(-65536).view(torch.float32)",
    ),
]
MUTATIONS = [(name, *error) for name in NAMES for error in ERRORS]
