"""Deliberate errors of the expert router reference: (definition, label, old, new)."""

NAME = "expert_router_bf16_h5120_e384_top6"

SORTED = "rank.sort(dim=-1, descending=True, stable=True).indices"
BIAS = "torch.where(is_image[:, None], bias_vl, bias)"
ERRORS = [
    ("ties to the higher id", SORTED, "E - 1 - " + SORTED.replace("rank", "rank.flip(-1)")),
    ("ids left in ranking order", "best_first[:, :TOPK].sort(dim=-1).values", "best_first[:, :TOPK]"),
    ("weights left in ranking order", "scores.gather(1, ids)", "scores.gather(1, best_first[:, :TOPK])"),
    ("bias inside the weights", "scores.gather(1, ids)", "rank.gather(1, ids)"),
    ("image bias ignored", BIAS, "bias"),
    ("image and text biases exchanged", BIAS, "torch.where(is_image[:, None], bias, bias_vl)"),
    ("bias dropped", "rank = scores + " + BIAS, "rank = scores"),
    ("logits rounded to BF16", "hidden_states.float() @ weight.float().T", "(hidden_states @ weight.T).float()"),
    ("square root dropped", ".sqrt()", ""),
    ("softplus linear too early", "LINEAR_ABOVE = 20.0", "LINEAR_ABOVE = 3.0"),
    ("softplus never linear", "LINEAR_ABOVE = 20.0", "LINEAR_ABOVE = 1e9"),
    ("guard of the sum dropped", " + EPSILON", ""),
    ("scaling factor dropped", "EPSILON) * routed_scaling_factor", "EPSILON)"),
    ("NaN ranks last", "rank.isnan(), torch.inf", "rank.isnan(), -torch.inf"),
]
MUTATIONS = [(NAME, *error) for error in ERRORS]
