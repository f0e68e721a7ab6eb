"""Expert router: the six experts of each token and their weights, with a selection bias per modality.

    logit  = hidden . weight[e]                              float32, never rounded to BF16
    score  = sqrt(softplus(logit))                           softplus(x) = log1p(exp(x)) up to 20, x above
    rank   = score + (bias_vl if is_image else bias)[e]      decides the selection and nothing else
    ids    = the six experts of highest rank                 equal ranks: lower id first; NaN ranks as +inf
    weight = score[id] / (sum of the six scores + 1e-20) * routed_scaling_factor

Ids are written in increasing order and each weight stays in the column of its id.

Rounding: everything is float32 from the (exact) products of BF16 operands on; nothing is rounded further.
"""

import torch

H = 5120
E = 384
TOPK = 6
LINEAR_ABOVE = 20.0  # softplus(x) = x from here on
EPSILON = 1e-20  # added to the sum of scores

# At the largest published call M = 4096 the widened hidden states are 4096 * 5120 * 4 B = 80 MiB and each of
# the [M, E] tensors 6 MiB, so rows need no steps.


def run(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    """Return (topk_ids, topk_weights).

    hidden_states          bfloat16 [M, H]     tokens, after the RMSNorm before the experts
    weight                 bfloat16 [E, H]     gate, one row an expert
    bias                   float32  [E]        selection bias of text tokens
    bias_vl                float32  [E]        selection bias of image tokens
    is_image               bool     [M]        the token is an image placeholder
    routed_scaling_factor  float               1.0, or 1.5 where the engine folds the factor in here
    topk_ids               int32    [M, TOPK]  increasing along the row
    topk_weights           float32  [M, TOPK]  weight of the id in the same column
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # neither TF32 nor BF16 inside float32 products
    try:
        return _route(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor)
    finally:
        torch.set_float32_matmul_precision(precision)


def _route(hidden_states, weight, bias, bias_vl, is_image, routed_scaling_factor):
    M = hidden_states.shape[0]
    assert hidden_states.shape == (M, H) and weight.shape == (E, H) and is_image.shape == (M,)
    assert bias.shape == bias_vl.shape == (E,)
    logits = hidden_states.float() @ weight.float().T
    scores = torch.where(logits > LINEAR_ABOVE, logits, torch.log1p(torch.exp(logits))).sqrt()
    rank = scores + torch.where(is_image[:, None], bias_vl, bias)
    rank = rank.masked_fill(rank.isnan(), torch.inf)
    best_first = rank.sort(dim=-1, descending=True, stable=True).indices  # stable: equal ranks keep id order
    ids = best_first[:, :TOPK].sort(dim=-1).values
    chosen = scores.gather(1, ids)
    weights = chosen / (chosen.sum(dim=-1, keepdim=True) + EPSILON) * routed_scaling_factor
    return ids.to(torch.int32), weights
