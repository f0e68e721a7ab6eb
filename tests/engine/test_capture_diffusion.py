"""The launcher of a diffusion capture, with a stand-in for the engine that records what a hook would."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.commands import command
from helpers.launchers import replace_diffusion_engine, write_configuration
from inference_kernels.capture.recorder import Recorder
from inference_kernels.engine import diffusion_settings
from inference_kernels.models.image.spec import CACHED_PREFIX
from inference_kernels.models.registry import MEDIA

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IHDR")
SIZES = [flag for case in ("text_to_image", "landscape", "edit", "transparent") for flag in ("--size", f"{case}=64x32")]


class Engine:
    """DiffGenerator's interface. behaviour: what goes wrong in which case."""

    behaviour: dict = {}
    log: list = []

    @classmethod
    def from_pretrained(cls, **flags):
        if "start" in cls.behaviour:
            raise RuntimeError("no worker\nmore")
        cls.log.append(flags)
        return cls()

    def generate(self, sampling_params_kwargs):
        recorder = Recorder.from_environment()
        case, wanted = recorder.request()["case"], sampling_params_kwargs
        self.log.append((case, wanted))
        fault = self.behaviour.get(case)
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "hook":
            recorder.report_error("attend_sample", ValueError("a bad mask"))
        if fault != "silent":
            capture_one_call(recorder, wrong=fault == "wrong")
        outputs = wanted["num_outputs_per_prompt"] - (fault == "lost image")
        return [self.image(wanted, index, fault) for index in range(outputs)]

    def image(self, wanted, index, fault):
        path = Path(wanted["output_path"]) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (wanted["width"], wanted["height"] + (fault == "other size"))
        path.write_bytes(PNG + struct.pack(">II", *size))
        return SimpleNamespace(output_file_path=str(path))

    def shutdown(self):
        self.log.append("shutdown")


def capture_one_call(recorder, wrong=False):
    """Record one exact call: with a single key, every output is that key's value."""
    seed = len(recorder.request()["prompt"])
    row = (torch.arange(32 * 128) % 7 + seed).bfloat16().reshape(1, 32, 128)
    inputs = {"q": row, "k_prefix": row, "v_prefix": row, "k": row, "v": row}
    recorder.observe(CACHED_PREFIX)
    recorder.record(
        CACHED_PREFIX,
        inputs,
        {"o": row + wrong},
        adaptations=[],
        operation={"call_path": "toy", "layer": "toy", "step": 1, "phase": "cached prefix", "ranks_gathered": 1},
    )


@pytest.fixture
def capture(tmp_path, monkeypatch):
    """capture(*flags) -> Result of the command on a checkpoint without weights, engine replaced."""
    checkpoint = write_configuration(tmp_path / "qwen-image-2.1-toy", "image")
    replace_diffusion_engine(monkeypatch, Engine)
    monkeypatch.setattr(Engine, "behaviour", {})
    monkeypatch.setattr(Engine, "log", [])

    def run(*flags, definition=CACHED_PREFIX):
        chosen = ("--definition", definition) if definition else ()
        return command(
            "capture_diffusion.py",
            "--kind",
            "image",
            "--model-path",
            checkpoint,
            "--output-root",
            tmp_path / "run" / "dataset",
            *SIZES,
            *chosen,
            *flags,
        )

    run.folder = tmp_path / "run"
    return run


def requests():
    return {entry[0]: entry[1] for entry in Engine.log if isinstance(entry, tuple)}


def test_a_run_sends_every_case_keeps_the_images_and_completes(capture):
    result = capture("--num-outputs", 2)
    assert result.code == 0, result.err
    assert result.summary["complete"] and result.summary["captured"] == {CACHED_PREFIX: 4}
    names = sorted(path.name for path in (capture.folder / "images").iterdir())
    assert names == sorted(f"{case}_{index}.png" for case in requests() for index in (0, 1))
    assert list(requests()) == ["text_to_image", "landscape", "edit", "transparent"]
    assert requests()["edit"]["image_path"] == [str(capture.folder / "images" / "text_to_image_0.png")]
    assert requests()["landscape"]["width"] == 64 and Engine.log[-1] == "shutdown"
    assert Engine.log[0]["enable_breakable_cuda_graph"] is False


def test_a_complete_run_is_left_alone(capture):
    capture()
    Engine.log.clear()
    result = capture()
    assert result.code == 0 and result.summary["complete"] and not Engine.log


def test_an_interrupted_run_is_resumed_after_its_finished_cases(capture):
    Engine.behaviour = {"edit": "interrupt"}
    assert capture().code == 130
    manifest = json.loads((capture.folder / "dataset" / "manifest.json").read_text())
    assert not manifest["complete"] and list(manifest["cases"]) == ["text_to_image", "landscape"]
    Engine.behaviour, Engine.log = {}, []
    result = capture()
    assert result.code == 0 and list(requests()) == ["edit", "transparent"]
    assert result.summary["captured"] == {CACHED_PREFIX: 4}


@pytest.mark.parametrize(
    "behaviour, words",
    [
        ({"start": 1}, ["RuntimeError: no worker", "engine.log"]),
        ({"edit": "lost image"}, ["edit", "PNG files"]),
        ({"edit": "other size"}, ["edit", "(64, 33)"]),
        ({"edit": "hook"}, ["a bad mask", "errors/0000.json"]),
        ({"transparent": "wrong"}, ["outside", CACHED_PREFIX]),
        (dict.fromkeys(MEDIA["image"].cases, "silent"), [f"none of {CACHED_PREFIX} (0 calls"]),
    ],
)
def test_faults_end_the_run_with_one_line_and_an_incomplete_manifest(capture, behaviour, words):
    Engine.behaviour = behaviour
    result = capture()
    error = result.err.splitlines()[-1]
    assert result.code == 2 and all(word in error for word in words), error
    assert not json.loads((capture.folder / "dataset" / "manifest.json").read_text())["complete"]


def test_an_operator_that_only_some_definitions_reach_is_named(capture):
    result = capture("--case", "landscape", definition=None)
    assert "dense_gemm_bf16_nt_n4096_k4096 (0 calls seen)" in result.err
    assert f"none of {CACHED_PREFIX}" not in result.err


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--size", "edit=33x32"], "multiples of 32"),
        (["--size", "edit=0x32"], "multiples of 32"),
        (["--size", "edit=32"], "NAME=WxH"),
        (["--size", "cat=32x32"], "text_to_image"),
        (["--case", "cat"], "text_to_image"),
        (["--layer", "cat"], "attn.to_q"),
        (["--block", "-1"], ">= 0"),
        (["--steps-captured", "first"], "choose from"),
        (["--steps-captured", "second"], "first, early"),
        (["--block", "2"], "below 2"),
        (["--case", "edit"], "--reference-image"),
    ],
)
def test_bad_arguments_are_refused_before_the_engine_starts(capture, flags, words):
    result = capture(*flags)
    assert result.code == 2 and words in result.err.splitlines()[-1] and not Engine.log


@pytest.mark.parametrize(
    "names, count, numbers",
    [
        (["first", "early", "middle", "last"], 8, [0, 1, 4, 7]),
        (["last"], 8, [7]),
        (["first", "last"], 1, [0]),
        (["early", "middle"], 2, [1]),
    ],
)
def test_step_names(names, count, numbers):
    assert diffusion_settings.step_numbers(names, count) == numbers


def test_a_published_checkpoint_must_be_named(capture, tmp_path):
    (tmp_path / "qwen-image-2.1-toy" / "seeded_recipe.json").unlink()
    assert "--model-id" in capture().err
    result = capture("--model-id", "Qwen/Qwen-Image-2.1-Turbo", "--model-revision", "0" * 40)
    assert result.code == 0
    settings = json.loads((capture.folder / "dataset" / "manifest.json").read_text())["settings"]
    assert settings["class"] == "published" and settings["model"]["revision"] == "0" * 40
