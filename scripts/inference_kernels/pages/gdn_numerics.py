"""docs/gdn_prefill_numerics.md: errors of gated delta prefill implementations against a float64 recurrence.

Cases, measures and the page; benchmarks/gdn_prefill_numerics.py runs the cases on a GPU and writes SUMMARY.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.compare import RELATIVE_FLOOR
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.files import read_json
from inference_kernels.core.layout import blob_path
from inference_kernels.core.workloads import Available, available_workloads, data_classes
from inference_kernels.pages.markdown import table

if TYPE_CHECKING:
    import torch

DEFINITION = "gdn_prefill_qk4_v8_d128_k_last"
SUMMARY, PAGE = "results/summaries/gdn_prefill_numerics.json", "docs/gdn_prefill_numerics.md"
HEADS, VALUE_HEADS, SIZE = 4, 8, 128
# The strict rule is |error| <= atol + rtol * |exact| with the tolerances of the tensor's dtype.
STRICT = {"output": (0.005, 0.016), "new_state": (2e-5, 1e-4)}
CONTEST = 0.01  # the task's rule: absolute or relative, with RELATIVE_FLOOR added to |exact|

Inputs = dict[str, Any]
CaseFigures = dict[str, Any]


def captured_workloads(root: Path) -> dict[str, Inputs]:
    """Load the captured prefill calls whose tensors are here: UUID -> inputs by name, on the CPU."""
    from inference_kernels.core.replay import load_inputs

    definition = load_definition(root, DEFINITION)

    def inputs(item: Available) -> Inputs:
        def resolve(path: str) -> Path:
            return blob_path(root, path, DEFINITION, item.uuid)

        return load_inputs(definition, item.workload, resolve, "cpu")

    items = available_workloads(root, definition, data_classes(root))
    return {item.uuid: inputs(item) for item in items if not item.missing}


def repeated(captured: Inputs, lengths: list[int]) -> Inputs:
    """Repeat captured rows to sequences of `lengths`, in all per-token inputs alike.

    Token t of all sequences is captured row t modulo the number of rows; sequence i starts from captured
    state i modulo the number of captured sequences.
    """
    import torch

    rows = torch.arange(sum(lengths)) % captured["q"].shape[0]
    result = {name: captured[name][rows] for name in ("q", "k", "v", "a", "b")}
    sequences = torch.arange(len(lengths)) % captured["state"].shape[0]
    return captured | result | {"state": captured["state"][sequences], "cu_seqlens": offsets(lengths)}


def synthetic(lengths: list[int], decay: float, shared: float, seed: int) -> Inputs:
    """Draw inputs from a fixed seed; they are labelled synthetic wherever they appear and are no data of the dataset.

    decay: median over tokens of each head's decay; the gate has a standard deviation of 0.5. shared: the part that
    all keys have in common, 0 for independent keys. v has a standard deviation of 1, the first states of 0.1; q and k
    are normalised and rounded to BF16.
    """
    import torch
    from torch.nn.functional import normalize

    generator, tokens = torch.Generator().manual_seed(seed), sum(lengths)

    def normal(*shape: int) -> "torch.Tensor":
        return torch.randn(*shape, generator=generator)

    q, k = normal(2, tokens, HEADS, SIZE)
    k = (1 - shared) * normalize(k, dim=-1) + shared * normalize(normal(1, HEADS, SIZE), dim=-1)
    q, k = (normalize(x, dim=-1).bfloat16() for x in (q, k))
    rate = -math.log(decay)
    return {
        "q": q,
        "k": k,
        "v": normal(tokens, VALUE_HEADS, SIZE).bfloat16(),
        "state": 0.1 * normal(len(lengths), VALUE_HEADS, SIZE, SIZE),
        "A_log": torch.zeros(VALUE_HEADS),
        "a": (0.5 * normal(tokens, VALUE_HEADS)).bfloat16(),
        "dt_bias": torch.full((VALUE_HEADS,), rate + math.log(-math.expm1(-rate))),
        "b": normal(tokens, VALUE_HEADS).bfloat16(),
        "cu_seqlens": offsets(lengths),
        "scale": SIZE**-0.5,
    }


def offsets(lengths: list[int]) -> "torch.Tensor":
    import torch

    return torch.tensor([0, *lengths]).cumsum(0)


def decays(inputs: Inputs) -> "torch.Tensor":
    """Compute the decay of each token and value head [tokens, value heads], in float64."""
    import torch

    step = torch.nn.functional.softplus(inputs["a"].double() + inputs["dt_bias"].double())
    return torch.exp(-inputs["A_log"].double().exp() * step)


def exact(inputs: Inputs) -> dict[str, "torch.Tensor"]:
    """Run the recurrence in float64, one token of every sequence at a time; each sequence has at least one token."""
    import torch

    values, state = inputs["v"].double(), inputs["state"].double().clone()
    queries, keys = (inputs[name].double().repeat_interleave(VALUE_HEADS // HEADS, dim=1) for name in ("q", "k"))
    decay, beta = decays(inputs), torch.sigmoid(inputs["b"].double())
    starts, ends = inputs["cu_seqlens"][:-1], inputs["cu_seqlens"][1:]
    output = torch.zeros_like(values)
    lengths = (ends - starts).tolist()
    for step in range(max(lengths)):
        running = [sequence for sequence, length in enumerate(lengths) if step < length]
        here = slice(None) if len(running) == len(lengths) else running
        row = starts[here] + step
        current = decay[row][..., None, None] * state[here]
        key = keys[row][..., None, :]
        delta = beta[row][..., None] * (values[row] - (current * key).sum(-1))
        current = current + delta[..., None] * key
        output[row] = inputs["scale"] * (current * queries[row][..., None, :]).sum(-1)
        state[here] = current
    return {"output": output, "new_state": state}


def measure(name: str, actual: "torch.Tensor", expected: "torch.Tensor") -> dict[str, Any]:
    """Measure the errors of one output against float64 values; heads are axis 1, shares are of elements."""
    finite, size = actual.isfinite(), expected.abs()
    # A non-finite element counts as zero in the error, and passes no rule.
    error = (actual.double().where(finite, 0.0) - expected).abs()
    atol, rtol = STRICT[name]
    strict = finite & (error <= atol + rtol * size)
    contest = finite & ((error <= CONTEST) | (error / (size + RELATIVE_FLOOR) <= CONTEST))
    axes = [axis for axis in range(expected.dim()) if axis != 1]
    heads = (error.square().mean(axes).sqrt() / expected.square().mean(axes).sqrt()).tolist()
    return {
        "rms": float(expected.square().mean().sqrt()),
        "max_abs_error": float(error.max()),
        "error_over_rms": float(error.square().mean().sqrt() / expected.square().mean().sqrt()),
        "error_over_rms_of_heads": heads,
        "non_finite": int((~finite).sum()),
        "beyond_strict": 1 - float(strict.double().mean()),
        "beyond_contest": 1 - float(contest.double().mean()),
        "zeros_pass_contest": float((size <= CONTEST).double().mean()),
    }


def numerics_page(root: Path) -> str:
    """Write PAGE from SUMMARY."""
    summary = read_json(root / SUMMARY)
    cases, software = summary["cases"], summary["environment"]
    least = min(outputs["output"]["error_over_rms"] for case in cases for outputs in case["results"].values())
    parts = [
        "# Numerics of gated delta prefill",
        _introduction(software, least),
        "## What the two rules say",
        _verdicts(cases),
    ]
    for group, title in summary["groups"].items():
        chosen = [case for case in cases if case["group"] == group]
        parts += [f"## {title}"] + [f"### `{name}`\n\n{_errors(chosen, name)}" for name in STRICT]
    heads = [case for case in cases if case["group"] == "captured"]
    return "\n\n".join([*parts, "## Error over rms of each head, captured calls", _heads(heads)]) + "\n"


def _introduction(environment: dict[str, str], least: float) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment.items())
    return f"""Generated by `python scripts/build_docs.py` from `{SUMMARY}`, which
`benchmarks/gdn_prefill_numerics.py` measured. The exact values are those of the recurrence in float64 on the
same inputs. Measured with: {versions}.

Cases: `captured` are the captured calls of this repository, unchanged; `captured rows` repeat the rows of
one of them in order, in all per-token inputs alike, to reach other lengths and counts. Both come from runs of
an untrained model. `synthetic` are random numbers, for decays and keys that no capture has.

Strict rule: error <= atol + rtol * size, with (atol, rtol) {STRICT["output"]} for the output and
{STRICT["new_state"]} for the state. Contest rule: error <= {CONTEST}, or error <= {CONTEST} * size.
Shares are of elements; the last column is the share that passes with an answer of zeros. Error over rms is the
rms of the error over the rms of the exact values, for all heads or for the worst one; the smallest of any output
here is {least:.1e}, because outputs are rounded to BF16."""


def _verdicts(cases: list[CaseFigures]) -> str:
    rows = []
    for implementation in _implementations(cases):
        for name in STRICT:
            measured = [case["results"][implementation][name] for case in cases if implementation in case["results"]]
            rows.append(
                [
                    implementation,
                    f"`{name}`",
                    len(measured),
                    sum(not item["beyond_strict"] for item in measured),
                    sum(not item["beyond_contest"] for item in measured),
                    f"{max(item['error_over_rms'] for item in measured):.2e}",
                ]
            )
    return table(["implementation", "tensor", "cases", "strict passes", "contest passes", "worst error over rms"], rows)


def _errors(cases: list[CaseFigures], name: str) -> str:
    rows = []
    for case in cases:
        for implementation, outputs in case["results"].items():
            item = outputs[name]
            rows.append(
                [
                    case["label"],
                    case["tokens"],
                    case["sequences"],
                    "/".join(f"{decay:.3g}" for decay in case["decays"]),
                    implementation,
                    *(f"{item[key]:.2e}" for key in ("rms", "max_abs_error", "error_over_rms")),
                    f"{max(item['error_over_rms_of_heads']):.2e}",
                    *(_share(item[key]) for key in ("beyond_strict", "beyond_contest", "zeros_pass_contest")),
                ]
            )
    return table(
        [
            "case",
            "tokens",
            "sequences",
            "decay 5/50/95 %",
            "implementation",
            "rms",
            "max error",
            "error over rms",
            "worst head",
            "beyond strict",
            "beyond contest",
            "zeros pass",
        ],
        rows,
    )


def _heads(cases: list[CaseFigures]) -> str:
    rows = [
        [
            case["label"],
            implementation,
            f"`{name}`",
            *(f"{value:.1e}" for value in outputs[name]["error_over_rms_of_heads"]),
        ]
        for case in cases
        for implementation, outputs in case["results"].items()
        for name in STRICT
    ]
    return table(["case", "implementation", "tensor", *(str(head) for head in range(VALUE_HEADS))], rows)


def _implementations(cases: list[CaseFigures]) -> list[str]:
    return sorted({implementation for case in cases for implementation in case["results"]})


def _share(value: float) -> str:
    return "0" if value == 0 else f"{value:.2%}" if value >= 1e-4 else f"{value:.0e}"


def summary_text(cases: list[CaseFigures], groups: dict[str, str], environment: dict[str, str]) -> str:
    """Format SUMMARY: environment, groups (name -> title), cases; floats with four digits."""
    rounded = json.loads(
        json.dumps({"environment": environment, "groups": groups, "cases": cases}),
        parse_float=lambda text: float(f"{float(text):.4g}"),
    )
    return json.dumps(rounded, indent=1) + "\n"
