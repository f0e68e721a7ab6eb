"""Deliberate errors in the sparse index reference; its oracle must catch each one."""

NAME = "sparse_index_select_bf16_h4_d128_topk512_blk4"

MUTATIONS = [
    (
        NAME,
        "equal scores go to the higher id",
        "order = torch.sort(scores, dim=1, descending=True, stable=True).indices",
        "order = scores.shape[1] - 1 - torch.sort(scores.flip(1), dim=1, descending=True, stable=True).indices",
    ),
    (
        NAME,
        "the newest complete block is hidden",
        "visible = (query_pos.long() + 1) // BLOCK_SIZE",
        "visible = query_pos.long() // BLOCK_SIZE",
    ),
    (
        NAME,
        "the incomplete block is a candidate",
        "visible = (query_pos.long() + 1) // BLOCK_SIZE",
        "visible = query_pos.long() // BLOCK_SIZE + 1",
    ),
    (
        NAME,
        "negative head scores count",
        "torch.relu(queries[:, head].double() @ keys.T)",
        "queries[:, head].double() @ keys.T",
    ),
    (
        NAME,
        "scores compared before they are rounded",
        "return (total / math.sqrt(head_dim)).float()",
        "return total / math.sqrt(head_dim)",
    ),
    (NAME, "the last head is dropped", "for head in range(heads):", "for head in range(heads - 1):"),
    (NAME, "ids stay in score order", "return order[:, :TOPK].sort(dim=1).values", "return order[:, :TOPK]"),
    (
        NAME,
        "pages taken in cache order",
        "return k_index_cache[used].flatten",
        "return k_index_cache[used.sort().values].flatten",
    ),
    (
        NAME,
        "later blocks are not masked",
        "scores = scores.masked_fill(ids >= visible[:, None], -math.inf)",
        "scores = scores.masked_fill(ids > visible[:, None], -math.inf)",
    ),
]
