"""Deliberate errors in the sparse attention reference; its oracle must catch each one."""

NAME = "sparse_gqa_bf16_h24_kv2_d256_topk512_blk4"

MUTATIONS = [
    (NAME, "scores not scaled", ".float().mT * sm_scale", ".float().mT"),
    (
        NAME,
        "heads interleaved over the key/value heads",
        "enumerate(q.chunk(kv_heads, dim=1))",
        "enumerate(q.unflatten(1, (-1, kv_heads)).unbind(2))",
    ),
    (NAME, "tail without the query itself", "tail <= query_pos[:, None]", "tail < query_pos[:, None]"),
    (
        NAME,
        "tail starts a block early where it is empty",
        "((query_pos + 1) // BLOCK_SIZE * BLOCK_SIZE)",
        "(query_pos // BLOCK_SIZE * BLOCK_SIZE)",
    ),
    (NAME, "tail dropped", "torch.where(tail <= query_pos[:, None], tail, -1)", "torch.full_like(tail, -1)"),
    (
        NAME,
        "fourth token of each block dropped",
        "block_ids[..., None] * BLOCK_SIZE + lane",
        "block_ids[..., None] * BLOCK_SIZE + lane.clamp(max=2)",
    ),
    (
        NAME,
        "-1 slots read as block 0",
        "block_ids[..., None] * BLOCK_SIZE",
        "block_ids.clamp(min=0)[..., None] * BLOCK_SIZE",
    ),
    (NAME, "values of the other key/value head", "v_cache[page, row, kv_head]", "v_cache[page, row, 1 - kv_head]"),
    (NAME, "unused slots keep their values", ".masked_fill_(hidden.mT, 0.0)", ""),
    (NAME, "probabilities rounded to BF16", "weights @ values", "weights.bfloat16().float() @ values"),
    (NAME, "logical pages taken for cache pages", "pages.gather(1, tokens // page_size)", "(tokens // page_size)"),
]
