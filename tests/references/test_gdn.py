"""Gated delta references against scalar float64 loops, a closed form, and two libraries where installed."""

import inspect
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.gdn_oracles import closed_form, expected, loops
from helpers.mutations.gdn import DECODE, MUTATIONS, NAMES, OLD_DECODE, OLD_PREFILL, PREFILL
from helpers.qwen_tools import broken_rules, caught, largest_temporary, noise
from helpers.reference_checks import mutated_reference

HEADS = {DECODE: (4, 8), PREFILL: (4, 8), OLD_DECODE: (16, 48), OLD_PREFILL: (48, 48)}  # query/key, value


def make_inputs(name, lengths, seed, heads=None, dim=128):
    """Inputs for sequences of `lengths` tokens (decode: as many sequences as `lengths` sums to).

    Queries and keys are normalised where the definition expects it; decays spread over about 0.4 to 0.99.
    """
    old = name in (OLD_DECODE, OLD_PREFILL)
    key_heads, value_heads = heads or HEADS[name]
    tokens, decode = sum(lengths), name in (DECODE, OLD_DECODE)
    sequences = tokens if decode else len(lengths)
    q, k = noise(seed, 2, tokens, key_heads, dim)
    if name != OLD_DECODE:
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    q, k, v = q.bfloat16(), k.bfloat16(), noise(seed + 1, tokens, value_heads, dim).bfloat16()
    a, b = noise(seed + 2, 2, tokens, value_heads).bfloat16()
    A_log, dt_bias = torch.linspace(0, 2, value_heads), torch.linspace(-4, -1, value_heads)
    state = 0.3 * noise(seed + 3, sequences, value_heads, dim, dim)
    bounds, scale = torch.tensor([0, *lengths]).cumsum(0), dim**-0.5
    if name == OLD_PREFILL:
        g = -torch.exp(A_log) * torch.nn.functional.softplus(a.float() + dt_bias)
        return q, k, v, g, torch.sigmoid(b.float()), state, bounds, scale
    if old:
        return q, k, v, a, b, A_log, dt_bias, state, scale
    if decode:
        q, k, v, a, b = (x[:, None] for x in (q, k, v, a, b))
        return q, k, v, state, A_log, a, dt_bias, b, scale
    return q, k, v, state, A_log, a, dt_bias, b, bounds, scale


def small_inputs(name, lengths, seed, dim=5):
    return make_inputs(name, lengths, seed, (6, 6) if name == OLD_PREFILL else (2, 6), dim)


def assert_close(results, exact, depth=1):
    """Output within half a BF16 step, state within float32 sums of `depth` tokens, of the float64 values."""
    output, state = results
    assert output.dtype == torch.bfloat16 and state.dtype == torch.float32
    np.testing.assert_allclose(output.double().numpy(), exact[0], rtol=2**-8, atol=depth * 2e-7)
    np.testing.assert_allclose(state.double().numpy(), exact[1], rtol=depth * 2e-6, atol=depth * 2e-7)


@cache
def cases(name):
    """(inputs, exact results) of calls that together show every rule."""
    calls = [(make_inputs(name, [5, 1, 0, 9], seed=1), closed_form)]
    for seed, lengths in enumerate(([1], [1, 1, 1], [4, 0, 0, 3], [0, 7, 0])):
        calls.append((small_inputs(name, lengths, seed), loops))
    if name == OLD_DECODE:  # where epsilon counts
        calls[1][0][0].mul_(1e-3), calls[1][0][1].mul_(1e-3)
    if name in (DECODE, PREFILL):
        inputs = small_inputs(name, [3, 2], seed=9)
        calls += [((*inputs[:-1], scale), loops) for scale in (0.0, None, 0.7)]
        calls.append(((*inputs[:3], None, *inputs[4:]), loops))  # no state
    return [(inputs, expected(name, inputs, solve)) for inputs, solve in calls]


def check_oracle(name, run):
    """Raise AssertionError unless `run` agrees with the oracles on the definition's cases."""
    for inputs, exact in cases(name):
        before = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        assert_close(run(*inputs), exact, depth=4)
        assert all(torch.equal(x, y) for x, y in zip(inputs, before) if isinstance(x, torch.Tensor))


@pytest.mark.parametrize("name", NAMES)
def test_reference_against_oracles(name, reference):
    check_oracle(name, reference(name))


@pytest.mark.parametrize("name,label,old,new", MUTATIONS, ids=[f"{m[0]}: {m[1]}" for m in MUTATIONS])
def test_mutations_are_caught(name, label, old, new, definition):
    assert caught(check_oracle, name, mutated_reference(definition(name), old, new)), label


@settings(deadline=None, max_examples=30)
@given(
    name=st.sampled_from(NAMES),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    dim=st.integers(1, 6),
)
def test_any_lengths(reference, name, lengths, seed, dim):
    """Empty sequences anywhere, also nothing but empty ones; one-token sequences."""
    inputs = small_inputs(name, lengths, seed, dim)
    assert_close(reference(name)(*inputs), expected(name, inputs, loops), depth=6)


def unit(column, like):
    """All rows of a tensor shaped like `like` are the unit vector e_column."""
    return torch.zeros_like(like).index_fill(-1, torch.tensor([column]), 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_state_layout(name, reference, definition):
    """From an empty state, key e_9 and value e_5 leave one entry: [5, 9] if k-last, [9, 5] if v-last."""
    named = dict(zip(definition(name)["inputs"], make_inputs(name, [1], seed=2)))
    named |= {"q": unit(9, named["q"]), "k": unit(9, named["k"]), "v": unit(5, named["v"])}
    first_state = "initial_state" if name == OLD_PREFILL else "state"
    named[first_state] = torch.zeros_like(named[first_state])
    output, state = reference(name)(*named.values())
    place = (5, 9) if name in (DECODE, PREFILL) else (9, 5)
    assert state[0, 0].nonzero().tolist() == [list(place)]
    beta = named["beta"].flatten()[0] if name == OLD_PREFILL else named["b"].flatten()[0].float().sigmoid()
    torch.testing.assert_close(state[0, 0][place], beta, rtol=2e-6, atol=0)
    assert output.flatten(0, -2)[0].nonzero().tolist() == [[5]]


@pytest.mark.parametrize("name", [PREFILL, OLD_PREFILL])
@pytest.mark.parametrize("cut", [1, 6, 10])
def test_a_sequence_in_two_calls(name, cut, reference):
    """The state handed over carries everything."""
    run, inputs = reference(name), make_inputs(name, [11], seed=3)
    output, state = run(*inputs)
    at, bounds = (3, 8) if name == PREFILL else (5, 6)
    halves = []
    for part, length in ((slice(0, cut), cut), (slice(cut, 11), 11 - cut)):
        call = [x[part] if isinstance(x, torch.Tensor) and x.shape[0] == 11 else x for x in inputs]
        call[at] = halves[-1][1] if halves else inputs[at]
        call[bounds] = torch.tensor([0, length])
        halves.append(run(*call))
    torch.testing.assert_close(torch.cat([first for first, _ in halves]), output, rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(halves[1][1], state, rtol=1e-5, atol=1e-6)


def test_decode_is_prefill_of_one_token_sequences(reference):
    q, k, v, state, A_log, a, dt_bias, b, scale = make_inputs(DECODE, [6], seed=4)
    output, new_state = reference(DECODE)(q, k, v, state, A_log, a, dt_bias, b, scale)
    same, same_state = reference(PREFILL)(
        q[:, 0], k[:, 0], v[:, 0], state, A_log, a[:, 0], dt_bias, b[:, 0], torch.arange(7), scale
    )
    assert torch.equal(output[:, 0], same) and torch.equal(new_state, same_state)


def test_queries_and_keys_are_not_normalised(reference):
    """The contest's contract: twice the query gives twice the output; a longer key is another key."""
    q, k, *rest = make_inputs(DECODE, [3], seed=5)
    output, new_state = reference(DECODE)(q, k, *rest)
    doubled, same_state = reference(DECODE)(2 * q, k, *rest)
    assert torch.equal(doubled, 2 * output) and torch.equal(same_state, new_state)
    assert not torch.allclose(reference(DECODE)(q, 2 * k, *rest)[1], new_state, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("a,b", [(80.0, 80.0), (-80.0, -80.0), (80.0, -80.0), (-80.0, 80.0)])
def test_gates_at_their_ends(a, b, reference):
    """Nothing kept or everything kept, nothing written or all of it: finite, and what the formula says."""
    inputs = list(small_inputs(DECODE, [2], seed=6))
    inputs[5], inputs[7] = torch.full_like(inputs[5], a), torch.full_like(inputs[7], b)
    assert_close(reference(DECODE)(*inputs), expected(DECODE, inputs, loops), depth=4)


def test_long_sequences_stay_close(reference):
    """700 tokens with decays near 1: float32 errors do not build up (closed form in float64)."""
    inputs = list(make_inputs(PREFILL, [700], seed=7, heads=(1, 2), dim=128))
    inputs[4] = torch.tensor([-3.0, -5.0])
    assert_close(reference(PREFILL)(*inputs), expected(PREFILL, inputs, closed_form), depth=10)


@pytest.mark.parametrize(
    "name,lengths,operand",
    [
        (DECODE, [8], 8 * 8 * 128 * 128),
        (OLD_DECODE, [3], 3 * 48 * 128 * 128),
        (PREFILL, [300, 0, 1], 301 * 8 * 128),
        (OLD_PREFILL, [150], 150 * 48 * 128),
    ],
)
def test_largest_temporary(name, lengths, operand, reference):
    """Decode needs tensors of the state's size; prefill of one operand, or of one state or the output states.

    At the largest published shapes: 64 * 8 * 128 * 128 * 4 B = 32 MiB, 8192 * 48 * 128 * 4 B = 192 MiB.
    """
    states = len(lengths) * HEADS[name][1] * 128 * 128
    assert largest_temporary(reference(name), make_inputs(name, lengths, seed=8)) <= 4 * max(operand, states)


@pytest.mark.parametrize("name", NAMES)
def test_constraints(name, definition):
    good = make_inputs(name, [3, 0, 2], seed=9)
    assert broken_rules(definition(name), good) == []
    if name in (DECODE, OLD_DECODE):
        return
    at = list(definition(name)["inputs"]).index("cu_seqlens")
    for bounds, rule in [
        ([0, 3, 3, 4], "cu_seqlens[-1] =="),
        ([0, 4, 3, 5], ">= cu_seqlens[:-1]"),
        ([1, 3, 3, 5], "cu_seqlens[0] == 0"),
        ([0, 3, 5], "num_seqs + 1"),
    ]:
        inputs = [*good[:at], torch.tensor(bounds), *good[at + 1 :]]
        assert any(rule in broken for broken in broken_rules(definition(name), inputs)), rule


def library_inputs(lengths, seed):
    """One prefill sequence in the libraries' form: repeated heads, log decay, a batch axis in front."""
    q, k, v, state, A_log, a, dt_bias, b, bounds, scale = inputs = make_inputs(PREFILL, lengths, seed)
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    q, k = (x.float().repeat_interleave(2, dim=1) for x in (q, k))
    batched = [x[None] for x in (q, k, v.float(), g, b.float().sigmoid())]
    return inputs, dict(zip(("q", "k", "v", "g", "beta"), batched)), state.mT


def assert_library_agrees(results, reference_results):
    output, state = results
    torch.testing.assert_close(reference_results[0].float(), output[0].float(), rtol=2**-8, atol=2e-5)
    torch.testing.assert_close(reference_results[1], state.mT, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("function", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_against_transformers(function, reference):
    """Torch functions of its Qwen3-Next, unwrapped: the wrapper prefers the kernels of other packages."""
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    inputs, named, state = library_inputs([130], seed=10)
    operands = [named.pop(key) for key in ("q", "k", "v")]
    run = inspect.unwrap(getattr(modeling, function))
    results = run(*operands, **named, initial_state=state, output_final_state=True)
    assert_library_agrees(results, reference(PREFILL)(*inputs))


@pytest.mark.parametrize("function", ["naive_recurrent_gated_delta_rule", "naive_chunk_gated_delta_rule"])
def test_against_flash_linear_attention(function, reference):
    """fla-core's naive implementations."""
    naive = pytest.importorskip("fla.ops.gated_delta_rule.naive")
    inputs, named, state = library_inputs([130], seed=11)
    named |= {"scale": inputs[-1], "initial_state": state, "output_final_state": True}
    results = getattr(naive, function)(**named)
    assert_library_agrees(results, reference(PREFILL)(*inputs))
