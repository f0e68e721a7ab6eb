"""The numerics of gated delta prefill: cases, the float64 recurrence, measures, and the generated page."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from helpers.gdn_oracles import closed_form, expected
from inference_kernels.core.tasks import read_task
from inference_kernels.pages import gdn_numerics
from inference_kernels.pages.gdn_numerics import captured_workloads, decays, exact, measure, repeated, synthetic
from references.test_gdn import PREFILL


def test_exact_recurrence_agrees_with_the_closed_form():
    inputs = synthetic([5, 1, 9], 0.9, 0.5, seed=1)
    order = ("q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "cu_seqlens", "scale")
    wanted = expected(PREFILL, [inputs[name] for name in order], closed_form)
    for got, want in zip(exact(inputs).values(), wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decay", [1e-4, 0.5, 0.99999])
def test_synthetic_decay_is_the_median(decay):
    found = decays(synthetic([400], decay, 0.0, seed=2))
    assert torch.log(found).median().item() == pytest.approx(np.log(decay), rel=0.1)


def test_synthetic_keys_with_everything_shared_are_one_key():
    keys = synthetic([7], 0.9, 1.0, seed=3)["k"]
    assert (keys == keys[:1]).all()


@pytest.fixture(scope="module")
def workloads(repository):
    found = captured_workloads(repository)
    if not found:
        pytest.skip("no captured workload's tensors are here")
    return found


def test_repeated_rows_are_captured_rows(workloads):
    captured = max(workloads.values(), key=lambda inputs: len(inputs["q"]))
    rows, lengths = len(captured["q"]), [3, len(captured["q"])]
    inputs = repeated(captured, lengths)
    for name in ("q", "k", "v", "a", "b"):
        assert torch.equal(inputs[name][:rows], captured[name])
        assert torch.equal(inputs[name][rows:], captured[name][:3])
    assert inputs["cu_seqlens"].tolist() == [0, 3, 3 + rows] and inputs["cu_seqlens"].dtype == torch.int64
    assert all(torch.equal(inputs[name], captured[name]) for name in ("A_log", "dt_bias"))


def test_measure_counts_by_each_rule():
    wanted = torch.full((2, 4, 5), 1.0, dtype=torch.float64)
    got = wanted.float()
    got[0, 1, 0] += 0.005  # beyond the strict rule of a state alone
    got[1, 2, 3] += 0.5
    got[1, 3, 3] = float("nan")
    found = measure("new_state", got, wanted)
    assert found["beyond_strict"] == pytest.approx(3 / 40)
    assert found["beyond_contest"] == pytest.approx(2 / 40)
    assert found["non_finite"] == 1 and found["zeros_pass_contest"] == 0.0
    heads = [0, 0.005 / 10**0.5, 0.5 / 10**0.5, 10**-0.5]
    assert found["error_over_rms_of_heads"] == pytest.approx(heads, abs=1e-6)


def test_command_and_page(tmp_path, repository, workloads):
    """The command runs on a CPU with the torch solution; the page shows every case, and only measured ones."""
    out = tmp_path / gdn_numerics.SUMMARY
    out.parent.mkdir(parents=True)
    command = [
        sys.executable,
        repository / "benchmarks" / "gdn_prefill_numerics.py",
        "--device",
        "cpu",
        "--implementations",
        "torch",
        "--largest",
        "64",
        "--out",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = gdn_numerics.numerics_page(tmp_path)
    for words in ("captured rows of", "synthetic, decay 0.5", "0.9 shared", "the smallest of any output"):
        assert words in page
    count = 12 + len(workloads)
    assert "flashinfer" not in page and f"| torch | `new_state` | {count} | {count} | {count} |" in page


def test_the_contest_rule_is_the_tasks(repository):
    tolerance = read_task(repository, gdn_numerics.DEFINITION).tolerance
    assert tolerance.comparison == "absolute_or_relative"
    assert tolerance.atol == tolerance.rtol == gdn_numerics.CONTEST
