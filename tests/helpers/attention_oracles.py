"""Float64 attention with a sink over gathered keys: an explicit loop, and SDPA with the sink as a key."""

import math

import torch


def looped_attention(q, keys, attn_sink, sm_scale: float) -> torch.Tensor:
    """One query row by the formula, term by term: q [H, D], keys [n, D] (key = value), attn_sink [H].

    Weights are taken relative to the sink's, so that every finite or infinite sink has a meaning.
    """
    H, D = q.shape
    out = torch.zeros(H, D, dtype=torch.float64)
    q, keys = q.double().tolist(), keys.double().tolist()
    for h, sink in enumerate(attn_sink.double().tolist()):
        scores = [sm_scale * sum(x * y for x, y in zip(q[h], key)) for key in keys]
        if not keys or sink == math.inf:
            continue
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        total = sum(weights) + (math.exp(sink - top) if sink - top < 700 else math.inf)
        for d in range(D):
            out[h, d] = sum(weight * key[d] for weight, key in zip(weights, keys)) / total
    return out


def sdpa_attention(q, keys, attn_sink, sm_scale: float) -> torch.Tensor:
    """The same by torch: the sink is one more key, its logit set by the additive mask, its value zero."""
    H, D = q.shape
    keys = torch.cat((keys.double(), torch.zeros(1, D, dtype=torch.float64)))
    mask = torch.zeros(H, 1, len(keys), dtype=torch.float64)
    mask[:, 0, -1] = attn_sink.double()
    shared = keys.expand(H, -1, -1)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.double()[:, None], shared, shared, attn_mask=mask, scale=sm_scale
    )
    return out[:, 0]
