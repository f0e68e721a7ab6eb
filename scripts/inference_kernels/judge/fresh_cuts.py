"""Rows of a selection that rounding would decide: two candidates at the cut closer than the noise of float32 sums.

The noise bounds are those of capture/near_ties.py, which leaves such calls out of a capture. Everything is computed
by batches of rows on the inputs' device.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROUTER_NOISE, INDEX_NOISE = 1e-4, 1e-5
ROUTER_ROWS = 2048
INDEX_SCORES = 2**26  # scores in a batch of rows: 256 MiB in float32


def router_near_ties(inputs: Mapping[str, Any], axes: Mapping[str, int]) -> "torch.Tensor":
    """Mark tokens whose last chosen and first refused expert have ranks closer than ROUTER_NOISE: bool [M]."""
    import torch

    weight, kept = inputs["weight"].float(), axes["TOPK"]
    near = []
    for hidden, image in zip(inputs["hidden_states"].split(ROUTER_ROWS), inputs["is_image"].split(ROUTER_ROWS)):
        scores = torch.nn.functional.softplus(hidden.float() @ weight.T).sqrt()
        ranks = scores + torch.where(image[:, None], inputs["bias_vl"], inputs["bias"])
        best = ranks.topk(min(kept + 1, ranks.shape[1])).values
        near.append(best[:, kept - 1] - best[:, -1] < ROUTER_NOISE if best.shape[1] > kept else image & False)
    return torch.cat(near)


def index_near_ties(inputs: Mapping[str, Any], axes: Mapping[str, int]) -> "torch.Tensor":
    """Mark queries whose last kept and first dropped block have scores closer than INDEX_NOISE: bool [num_tokens].

    Where the cut falls among blocks of score 0, ids decide, not rounding; such a row is marked only if some block's
    best product is so close to 0 that rounding decides whether it scores at all.
    """
    import torch

    kept, size = axes["topk"], inputs["k_index_cache"].shape[1]
    visible = (inputs["query_pos"].long() + 1) // axes["block_size"]
    near = torch.zeros_like(visible, dtype=torch.bool)
    for sequence, pages in enumerate(inputs["page_table"]):
        rows = ((inputs["query_seq"] == sequence) & (visible > kept)).nonzero().flatten()
        if not rows.numel():
            continue
        blocks = int(visible[rows].max())
        keys = inputs["k_index_cache"][pages[: -(-blocks // size)].long()].flatten(0, 1)[:blocks].float()
        for chunk in rows.split(max(1, INDEX_SCORES // blocks)):
            near[chunk] = _ambiguous(inputs["q_index"][chunk].float(), keys, visible[chunk], kept)
    return near


def _ambiguous(queries: "torch.Tensor", keys: "torch.Tensor", visible: "torch.Tensor", kept: int) -> "torch.Tensor":
    import torch

    total = torch.zeros(len(queries), len(keys), device=keys.device)
    best = torch.full_like(total, -torch.inf)
    for head in queries.unbind(1):
        products = (head @ keys.T).div_(math.sqrt(keys.shape[1]))
        best = torch.maximum(best, products)
        total += products.relu_()
    hidden = torch.arange(len(keys), device=keys.device) >= visible[:, None]
    top = total.masked_fill_(hidden, -torch.inf).topk(kept + 1).values
    at_zero = best.abs_().masked_fill_(hidden, torch.inf).amin(1) < INDEX_NOISE
    return torch.where(top[:, kept - 1] > 0, top[:, kept - 1] - top[:, kept] < INDEX_NOISE, at_zero)


CUTS = {"router": router_near_ties, "index": index_near_ties}
