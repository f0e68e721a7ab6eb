"""Gated delta rule over variable-length sequences of prepared operands, state layout [sequence, head, K, V].

For each token in order, from the sequence's initial state:

    S   <- exp(g) * S
    S   <- S + k (beta * (v - S^T k))^T
    output = scale * S^T q

q and k arrive L2-normalised, each of the 16 engine heads repeated for 3 neighbouring heads; g is the LOG
decay, beta the write strength after its sigmoid. Sequence i holds rows cu_seqlens[i] .. cu_seqlens[i + 1] - 1
(none: it keeps its initial state).

Rounding: everything is float32; output is rounded to BF16 once, final_state stays float32. There is no matrix
product, so no TF32 either.
"""

import torch

# The largest temporary is one widened operand: at 8192 tokens 8192 * 48 * 128 * 4 B = 192 MiB. A token's step
# works on one state, 48 * 128 * 128 * 4 B = 3 MiB, whatever the number of sequences.


def run(q, k, v, g, beta, initial_state, cu_seqlens, scale):
    """Return output, final_state.

    q, k           bfloat16 [total_tokens, 48, 128]      L2-normalised, repeated
    v              bfloat16 [total_tokens, 48, 128]
    g              float32  [total_tokens, 48]           log decay, at most 0
    beta           float32  [total_tokens, 48]           write strength, in (0, 1)
    initial_state  float32  [num_seqs, 48, 128, 128]     [K, V] of each head
    cu_seqlens     int64    [num_seqs + 1]               first row of each sequence, then total_tokens
    scale          float32  scalar
    output         bfloat16 [total_tokens, 48, 128]
    final_state    float32  [num_seqs, 48, 128, 128]
    """
    queries, keys, values, decay = q.float(), k.float(), v.float(), torch.exp(g)
    bounds = cu_seqlens.tolist()
    output = torch.empty_like(v)
    final_state = torch.empty_like(initial_state)
    for sequence, (first, end) in enumerate(zip(bounds, bounds[1:])):
        current = initial_state[sequence]
        for t in range(first, end):
            current = advance(current, keys[t], values[t], decay[t], beta[t])
            output[t] = scale * (current * queries[t, :, :, None]).sum(-2)
        final_state[sequence] = current
    return output, final_state


def advance(state, k, v, decay, beta):
    """The state after one token. state [..., K, V], k [..., K], v [..., V], decay and beta [...]."""
    state = decay[..., None, None] * state
    recalled = (state * k[..., :, None]).sum(-2)
    delta = beta[..., None] * (v - recalled)
    return state + k[..., :, None] * delta[..., None, :]
