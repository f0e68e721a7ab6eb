"""Deliberate errors of the dense GEMM references: (definition, label, old, new)."""

NAMES = [
    "dense_gemm_bf16_nt_n4096_k4096",
    "dense_gemm_bf16_nt_n12288_k4096",
    "dense_gemm_bf16_nt_n4096_k12288",
    "dense_gemm_bf16_nt_n64_k4096",
    "dense_gemm_bf16_nt_n4096_k64",
]

PRODUCT = "A[first : first + ROWS].float() @ weight"
WEIGHT = "B.float().T"
ERRORS = [
    (
        "split-K partial sums rounded to BF16",
        PRODUCT,
        "sum((A[first : first + ROWS, half].float() @ weight[half]).bfloat16()"
        "    for half in (slice(K // 2), slice(K // 2, K)))",
    ),
    ("truncated instead of rounded", PRODUCT, f"({PRODUCT}).view(torch.int32).bitwise_and(-65536).view(torch.float32)"),
    ("row block shifted by one", PRODUCT, "A.roll(1, 0)[first : first + ROWS].float() @ weight"),
    ("last input feature dropped", WEIGHT, "B.float().index_fill(1, torch.tensor([K - 1]), 0).T"),
    ("weight quantised to FP8", WEIGHT, "B.to(torch.float8_e4m3fn).float().T"),
]
MUTATIONS = [(name, *error) for name in NAMES for error in ERRORS]
MUTATIONS.append((NAMES[0], "weight not transposed", WEIGHT, "B.float()"))
