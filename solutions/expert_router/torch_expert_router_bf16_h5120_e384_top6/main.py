"""Expert router in plain PyTorch.

Boundary: the whole definition. Adaptation: none. On a GPU the projection is cuBLAS with float32 output,
elsewhere a float32 product. Run on CPU and on an H200 (torch 2.14.1): passes its starter workloads and the
larger captured ones.
"""

import torch

TOPK = 6


def run(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    """Return (topk_ids int32 [M, 6], topk_weights float32 [M, 6]). Inputs as in the definition."""
    if hidden_states.is_cuda:
        logits = torch.mm(hidden_states, weight.t(), out_dtype=torch.float32)
    else:
        logits = hidden_states.float() @ weight.float().t()
    scores = torch.nn.functional.softplus(logits).sqrt()
    ranks = scores + torch.where(is_image[:, None], bias_vl, bias)
    ranks = ranks.masked_fill(ranks.isnan(), torch.inf)
    best_first = ranks.sort(dim=1, descending=True, stable=True).indices  # equal ranks: lower id first
    ids = best_first[:, :TOPK].sort(dim=1).values
    chosen = scores.gather(1, ids)
    return ids.int(), chosen / (chosen.sum(1, keepdim=True) + 1e-20) * routed_scaling_factor
