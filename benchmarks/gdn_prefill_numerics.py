#!/usr/bin/env python3
"""Measure errors of gated delta prefill implementations against a float64 recurrence, for the docs page.

Runs on a GPU host with the engine's packages. Implementations: FlashInfer (the solution of that name), FLA
(SGLang 0.5.23's copy, `chunk_gated_delta_rule` as the engine calls it, without its normalisation), the Triton
and the torch solution. Cases: captured calls, repeated captured rows, and synthetic sweeps over lengths,
sequence counts, decays and keys. Failing implementations are named on stderr and make the exit code 1.
"""

import argparse
import importlib.util
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.cli import run_main
from inference_kernels.core.errors import DatasetError
from inference_kernels.core.files import write_text
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.pages.gdn_numerics import (
    DEFINITION,
    SUMMARY,
    captured_workloads,
    decays,
    exact,
    measure,
    repeated,
    summary_text,
    synthetic,
)

GROUPS = {
    "captured": "Captured calls",
    "captured rows": "Captured rows, repeated: lengths and sequence counts",
    "synthetic lengths": "Synthetic: lengths and sequence counts",
    "synthetic decays": "Synthetic: decays",
    "synthetic keys": "Synthetic: keys with a common part",
}
SHAPES = [[64], [1000], [8192], [512] * 16, [144] * 56 + [128]]
DECAYS = (1e-4, 0.1, 0.5, 0.9, 0.99, 0.999, 0.99999)
SHARED = (0.5, 0.9, 1.0)
ORDER = ("q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "cu_seqlens", "scale")


def cases(root: Path, largest: int):
    """Generate (group, label, inputs) of every case with at most `largest` tokens."""
    workloads = captured_workloads(root)
    for uuid, inputs in workloads.items():
        yield "captured", f"captured {uuid[:8]}", inputs
    if not workloads:
        raise DatasetError(
            expected=f"captured workloads of {DEFINITION}",
            where=str(root),
            found="none whose tensors are here",
            remedy="fetch them with git, or pass --root",
        )
    source = max(workloads, key=lambda uuid: workloads[uuid]["q"].shape[0])
    for lengths in SHAPES:
        if sum(lengths) <= largest:
            yield "captured rows", f"captured rows of {source[:8]}", repeated(workloads[source], lengths)
            yield "synthetic lengths", "synthetic, decay 0.95", synthetic(lengths, 0.95, 0.0, seed=1)
    middle = min(2048, largest)
    for decay in DECAYS:
        yield "synthetic decays", f"synthetic, decay {decay}", synthetic([middle], decay, 0.0, seed=2)
    for shared in SHARED:
        yield "synthetic keys", f"synthetic, decay 0.99, {shared} shared", synthetic([middle], 0.99, shared, seed=3)


def solution(kind: str):
    path = REPOSITORY / "solutions" / "gdn" / f"{kind}_{DEFINITION}" / "main.py"
    spec = importlib.util.spec_from_file_location(f"numerics_{kind}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda inputs: module.run(*(inputs[name] for name in ORDER))


def fla():
    from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule

    def run(inputs):
        step = torch.nn.functional.softplus(inputs["a"].float() + inputs["dt_bias"])
        log_decay = -inputs["A_log"].exp() * step
        state = inputs["state"].clone()
        output, _, _ = chunk_gated_delta_rule(
            q=inputs["q"][None],
            k=inputs["k"][None],
            v=inputs["v"][None],
            g=log_decay[None],
            beta=torch.sigmoid(inputs["b"].float())[None],
            scale=inputs["scale"],
            initial_state=state,
            initial_state_indices=torch.arange(len(state), dtype=torch.int32, device=state.device),
            cu_seqlens=inputs["cu_seqlens"],
            use_qk_l2norm_in_kernel=False,
        )
        return output[0], state

    return run


MAKERS = {
    "flashinfer": lambda: solution("flashinfer"),
    "fla (sglang)": fla,
    "triton": lambda: solution("triton"),
    "torch": lambda: solution("torch"),
}


def one_case(group: str, label: str, inputs: dict, implementations: dict, device: str) -> tuple[dict, list[str]]:
    """Measure one case; return its record and what failed in it, in words."""
    quantiles = decays(inputs).flatten().quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    truth, results, failed = exact(inputs), {}, []
    for name, run in implementations.items():
        try:
            outputs = dict(zip(truth, run(inputs), strict=True))
        except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
            failed.append(f"{name} on {label}, {len(inputs['q'])} tokens: {type(error).__name__}: {error}")
            continue
        results[name] = {key: measure(key, outputs[key], truth[key]) for key in truth}
    return {
        "group": group,
        "label": label,
        "tokens": len(inputs["q"]),
        "sequences": len(inputs["state"]),
        "decays": quantiles.tolist(),
        "results": results,
    }, failed


def environment(device: str) -> dict[str, str]:
    found = {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "triton": version("triton"),
    }
    for package in ("flashinfer-python", "sglang"):
        if importlib.util.find_spec(package.split("-")[0]):
            found[package] = version(package)
    return found


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    result.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    result.add_argument("--out", type=Path, help=f"summary file (default: {SUMMARY} below the root)")
    result.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the machinery")
    result.add_argument("--implementations", nargs="+", choices=sorted(MAKERS), default=list(MAKERS))
    result.add_argument("--largest", type=int, default=8192, metavar="TOKENS", help="leave out longer cases")
    return result


def main() -> int:
    options = parser().parse_args()
    torch.set_float32_matmul_precision("highest")
    implementations = {name: MAKERS[name]() for name in options.implementations}
    records, failed = [], []
    for group, label, inputs in cases(options.root, options.largest):
        record, wrong = one_case(group, label, inputs, implementations, options.device)
        records.append(record)
        failed += wrong
        states = ", ".join(
            f"{name} {result['new_state']['error_over_rms']:.1e}" for name, result in record["results"].items()
        )
        print(
            f"{label}, {record['tokens']} tokens, {record['sequences']} sequences: state error over rms: {states}",
            flush=True,
        )
    out = options.out or options.root / SUMMARY
    write_text(out, summary_text(records, GROUPS, environment(options.device)))
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    run_main(main)
