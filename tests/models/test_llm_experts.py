"""The grouped GEMMs of DeepSeek V4.1's experts: hooks, and the Hopper substitute against float64 products."""

import sys
from types import SimpleNamespace

import pytest
import torch

from helpers.llm_toys import batch, coded, hooked
from inference_kernels.capture.ranks import Ranks
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.deepseek import hopper
from inference_kernels.models.deepseek.checkpoint import bank_recipe
from inference_kernels.models.deepseek.hooks import DeepseekHooks
from inference_kernels.models.deepseek.spec import DOWN, GATE_UP

EXPERTS, COLUMNS = 4, 256


def grouped_operands(rows: int, real: list[int]):
    """Return FP8 rows and FP4 banks; rows not in `real` are padding with NaN bytes and NaN scales."""
    activations = coded("a", rows, COLUMNS)
    scales = torch.exp2((torch.arange(rows * COLUMNS // 128).view(rows, -1) % 5 - 3).float())
    experts = torch.full((rows,), -1, dtype=torch.int32)
    experts[real] = torch.tensor(sorted(index % EXPERTS for index in range(len(real))), dtype=torch.int32)
    activations[experts < 0] = 0x7F
    scales[experts < 0] = float("nan")
    banks = coded("b", EXPERTS, 5120, COLUMNS // 2, form="e2m1x2").view(torch.int8)
    bank_scales = torch.exp2((coded("bs", EXPERTS, 5120, COLUMNS // 32) % 3).float() - 8)
    return (activations.view(torch.float8_e4m3fn), scales), (banks, bank_scales), experts


def exact_product(lhs, rhs, experts, row: int) -> torch.Tensor:
    """Multiply one row with its expert in float64, by the formats' definitions."""
    lut = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    x = lhs[0][row].double() * lhs[1][row].double().repeat_interleave(128)
    codes = rhs[0][experts[row]].view(torch.uint8).long()
    w = torch.stack([lut[codes & 15], lut[codes >> 4]], -1).flatten(1)
    return (w * rhs[1][experts[row]].double().repeat_interleave(32, 1)) @ x


def aligned_kernel(a, b, d, expert_of_row):
    """Multiply by DeepGEMM's contract: rows of an expert start at multiples of 128, one expert per block."""
    for first in range(0, a.shape[0], 128):
        block = expert_of_row[first : first + 128]
        assert (block == block[0]).all()
        d[first : first + 128] = (a[first : first + 128].float() @ b[block[0]].float().T).bfloat16()


def test_the_grouped_substitute_is_exact_and_skips_padding():
    lhs, rhs, experts = grouped_operands(12, [0, 1, 4, 5, 6, 9])
    out = torch.full((12, 5120), 7.0, dtype=torch.bfloat16)
    hopper.grouped_gemm(lhs, rhs, out, experts, aligned_kernel)
    for row in range(12):
        if experts[row] < 0:
            assert (out[row] == 7).all()
        else:
            torch.testing.assert_close(out[row].double(), exact_product(lhs, rhs, experts, row), rtol=0.01, atol=1e-4)


class ToyRecorder:
    """Keeps what is recorded in memory: the real expert banks have 2.4 to 4.8 GB."""

    def __init__(self, settings):
        self.settings, self.calls, self.keep = settings, [], {GATE_UP: [0], DOWN: [0]}

    def request(self):
        return {"case": "case", "prompt_tokens": [1], "keep": {"decode": self.keep}}

    def observe(self, definition):
        pass

    def report_error(self, where, error):
        raise error

    def record(self, definition, inputs, outputs, **details):
        self.calls.append((definition, inputs, outputs, details))


@pytest.fixture
def experts_hooks():
    layers = {GATE_UP: 1, DOWN: 1}
    recorder = ToyRecorder(
        {
            "selection": {"layers": layers},
            "definitions": list(layers),
            "class": "seeded",
            "substitutions": list(hopper.SUBSTITUTIONS),
            "model": {"seed": 3},
        }
    )
    return DeepseekHooks(recorder, Ranks)


def run_experts(hooks, gemm, quantise=None):
    layer = SimpleNamespace(layer_id=1)

    def apply(self, layer, dispatch_output):
        if quantise:
            quantise()
        return gemm()

    dispatch = SimpleNamespace(hidden_states=torch.zeros(1, 8))
    hooks.around_forward(
        lambda runner, forward_batch: hooked(apply, hooks.around_experts)(None, layer, dispatch),
        None,
        batch("decode", 1),
    )


def test_grouped_calls_are_recorded_in_logical_form(experts_hooks, monkeypatch):
    fake = SimpleNamespace(m_grouped_bf16_gemm_nt_contiguous=aligned_kernel)
    monkeypatch.setitem(sys.modules, "deep_gemm", fake)
    lhs, rhs, experts = grouped_operands(10, [0, 3, 4])

    def contig(lhs, rhs, out, m_indices, recipe_a=None, recipe_b=None):
        raise AssertionError("the Blackwell kernel must not run")

    def gemm():
        out = torch.full((10, 5120), float("nan"), dtype=torch.bfloat16)
        hooked(contig, experts_hooks.around_grouped)(lhs, rhs, out, experts, recipe_a=(1, 128), recipe_b=(1, 32))
        lhs[0].view(torch.uint8).zero_()  # the engine releases its operands

    experts_hooks.recorder.keep = {DOWN: [0]}
    run_experts(experts_hooks, gemm)
    ((definition, inputs, outputs, details),) = experts_hooks.recorder.calls
    assert definition == DOWN and outputs["d"].shape == (3, 5120) and outputs["d"].isfinite().all()
    assert inputs["expert_ids"].tolist() == experts[experts >= 0].tolist()
    assert inputs["a_scale"].shape == (3, COLUMNS // 32) and inputs["a"].dtype == torch.int8
    bytes_of_group = inputs["a_scale"].view(3, -1, 4)
    assert (bytes_of_group == bytes_of_group[..., :1]).all()
    assert details["generated"]["b"] == bank_recipe(3, 1, "w2", False).to_json()
    assert "7 padding rows dropped" in details["adaptations"]


def test_an_experts_call_without_the_grouped_gemm_is_an_error(experts_hooks):
    with pytest.raises(CaptureError, match="deep_gemm"):
        run_experts(experts_hooks, lambda: None)


def test_activation_scales_are_forced_inside_the_experts_only(experts_hooks):
    seen = []

    def quantise(x, group_size, eps=1e-10, column_major_scales=False, scale_tma_aligned=False, scale_ue8m0=False):
        seen.append((group_size, column_major_scales, scale_ue8m0))

    wrapped = hooked(quantise, experts_hooks.around_quantise)
    experts_hooks.recorder.report_error = lambda where, error: None
    run_experts(experts_hooks, lambda: None, lambda: wrapped(None, 32, column_major_scales=True))
    wrapped(None, 128)
    assert seen == [(32, False, True), (128, False, False)]


@pytest.mark.parametrize(
    "scales, expected",
    [
        (torch.tensor([[1.0, 0.5, 4.0]]), [[127, 126, 129]]),
        (torch.tensor([[127 | 126 << 8 | 129 << 16]], dtype=torch.int32), [[127, 126, 129]]),
    ],
)
def test_scale_bytes(scales, expected):
    assert hopper.scale_bytes(scales, 3).tolist() == expected


@pytest.mark.parametrize("value", [0.75, -1.0, 0.0, float("nan"), float("inf")])
def test_scales_that_are_no_powers_of_two_are_refused(value):
    with pytest.raises(CaptureError, match="powers of two"):
        hopper.scale_bytes(torch.tensor([[value]]), 1)


@pytest.mark.parametrize(
    "width, columns, dtype, group",
    [
        (160, 5120, torch.float32, 32),
        (18, 2304, torch.float32, 128),
        (40, 5120, torch.int32, 32),
        (5, 2304, torch.int32, 128),
        (10, 5120, torch.int32, 128),
    ],
)
def test_activation_group_from_shapes(width, columns, dtype, group):
    assert hopper.activation_group(torch.zeros(1, width, dtype=dtype), columns) == group
