"""Float64 oracles of the gated delta definitions, independent of the references and of each other.

Both solvers work on one head of one sequence: q, k [T][K], v [T][V], decay, beta [T] and state [V][K] give
outputs [T][V] and the state [V][K] after it. `expected` brings each definition's inputs into that form and
back.
"""

import math

import numpy as np
import torch

from helpers.mutations.gdn import DECODE, OLD_DECODE, OLD_PREFILL, PREFILL


def loops(q, k, v, decay, beta, state, scale):
    """The recurrence written out, one number at a time."""
    state, outputs = [list(row) for row in state], []
    for t in range(len(q)):
        for i, row in enumerate(state):
            row[:] = [decay[t] * x for x in row]
            recalled = math.fsum(x * y for x, y in zip(row, k[t]))
            row[:] = [x + beta[t] * (v[t][i] - recalled) * y for x, y in zip(row, k[t])]
        outputs.append([scale * math.fsum(x * y for x, y in zip(row, q[t])) for row in state])
    return np.array(outputs).reshape(len(q), len(state)), np.array(state)


def closed_form(q, k, v, decay, beta, state, scale):
    """No recurrence. With D(t) the product of the decays up to t, the state after t is D(t) times (the first
    state plus the sum of u(s) k(s)^T over s <= t), and the vectors u solve one lower triangular system.
    """
    q, k, v, decay, beta, state = (np.array(x, dtype=np.float64) for x in (q, k, v, decay, beta, state))
    product = np.cumprod(decay)[:, None]
    system = np.eye(len(k)) + beta[:, None] * np.tril(k @ k.T, -1)
    u = np.linalg.solve(system, beta[:, None] * (v / product - k @ state.T))
    outputs = scale * product * (q @ state.T + np.tril(q @ k.T) @ u)
    return outputs, product[-1] * (state + u.T @ k)


def gates(A_log, a, dt_bias, b):
    """Decay and write strength of one token and head, in float64."""
    return math.exp(-math.exp(A_log) * math.log1p(math.exp(a + dt_bias))), 1 / (1 + math.exp(-b))


def all_heads(solve, q, k, v, decay, beta, state, scale):
    """One sequence: q, k [T, HK, K], v [T, HV, V], decay, beta [T, HV], state [HV, V, K]; float64 arrays."""
    share, parts = v.shape[1] // q.shape[1], []
    for head in range(v.shape[1]):
        per_token = (q[:, head // share], k[:, head // share], v[:, head], decay[:, head], beta[:, head])
        parts.append(solve(*(x.tolist() for x in (*per_token, state[head])), scale))
    return np.stack([outputs for outputs, _ in parts], axis=1), np.stack([final for _, final in parts])


def expected(name, inputs, solve):
    """float64 (output, state) of a definition's inputs."""
    return {
        DECODE: expected_decode,
        PREFILL: expected_prefill,
        OLD_DECODE: expected_old_decode,
        OLD_PREFILL: expected_old_prefill,
    }[name](solve, *map(wide, inputs))


def wide(value):
    return value.double().numpy() if isinstance(value, torch.Tensor) else value


def expected_decode(solve, q, k, v, state, A_log, a, dt_bias, b, scale):
    q, k, v, a, b = (x[:, 0] for x in (q, k, v, a, b))
    rows = np.arange(len(q) + 1)
    output, new_state = expected_prefill(solve, q, k, v, state, A_log, a, dt_bias, b, rows, scale)
    return output[:, None], new_state


def expected_prefill(solve, q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    decay, beta = np.vectorize(gates, otypes=[float, float])(A_log, a, dt_bias, b)
    output, bounds = np.zeros(v.shape), cu_seqlens.astype(int)
    new_state = np.zeros((len(bounds) - 1, *v.shape[1:], k.shape[2]))
    for s, (first, end) in enumerate(zip(bounds, bounds[1:])):
        if end > first:
            before = np.zeros(new_state.shape[1:]) if state is None else state[s]
            part = (x[first:end] for x in (q, k, v, decay, beta))
            output[first:end], new_state[s] = all_heads(solve, *part, before, scale or k.shape[2] ** -0.5)
    return output, new_state


def expected_old_decode(solve, q, k, v, a, b, A_log, dt_bias, state, scale):
    q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    rows, state = np.arange(len(q) + 1), state.swapaxes(-1, -2)
    output, new_state = expected_prefill(solve, q, k, v, state, A_log, a, dt_bias, b, rows, scale)
    return output, new_state.swapaxes(-1, -2)


def expected_old_prefill(solve, q, k, v, g, beta, initial_state, cu_seqlens, scale):
    output, final_state, bounds = np.zeros(v.shape), initial_state.copy(), cu_seqlens.astype(int)
    for s, (first, end) in enumerate(zip(bounds, bounds[1:])):
        if end > first:
            part = (x[first:end] for x in (q, k, v, np.exp(g), beta))
            output[first:end], after = all_heads(solve, *part, initial_state[s].swapaxes(-1, -2), scale)
            final_state[s] = after.swapaxes(-1, -2)
    return output, final_state
