"""The launcher of a video capture, with a stand-in for the engine; and the sizes of saved files."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.commands import command
from helpers.launchers import replace_diffusion_engine, write_configuration
from helpers.mp4_files import mp4
from inference_kernels.capture.recorder import Recorder
from inference_kernels.engine import diffusion_settings
from inference_kernels.engine.media import media_size
from inference_kernels.models.ltx.spec import AUDIO_DENSE, LTX_LAYERS, ONE_BY_ONE, STAGES
from inference_kernels.models.registry import MEDIA

SMALL = ["--size", "text_to_video=64x64x9", "--size", "longer_video=64x96x17", "--size", "image_to_video=64x64x9"]
MATH = ["--audio-sdpa-backend", "math", "--video-sdpa-backend", "math"]


class Engine:
    """DiffGenerator's interface; saves `file` as every output."""

    flags: dict = {}
    requests: list = []
    file: dict = {}

    @classmethod
    def from_pretrained(cls, **flags):
        cls.flags.update(flags)
        return cls()

    def generate(self, sampling_params_kwargs):
        wanted, recorder = sampling_params_kwargs, Recorder.from_environment()
        self.requests.append((recorder.request(), wanted))
        row = (torch.arange(32 * 64) % 7 + len(wanted["prompt"])).bfloat16().reshape(1, 1, 32, 64)
        recorder.record(
            AUDIO_DENSE,
            {"q": row, "k": row, "v": row},
            {"o": row},
            adaptations=[],
            operation={
                "call_path": "toy",
                "layer": "toy",
                "step": 1,
                "phase": "denoise",
                "ranks_gathered": 1,
                "output": 0,
            },
        )
        size = {"width": wanted["width"], "height": wanted["height"], "frames": wanted["num_frames"]}
        return [self.save(wanted, index, mp4(**size | self.file)) for index in range(wanted["num_outputs_per_prompt"])]

    @staticmethod
    def save(wanted, index, content):
        path = Path(wanted["output_path"]) / f"{index}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return SimpleNamespace(output_file_path=str(path))

    def shutdown(self):
        pass


@pytest.fixture
def capture(tmp_path, monkeypatch):
    """capture(*flags) -> Result of the command on a checkpoint without weights, engine replaced."""
    checkpoint = write_configuration(tmp_path / "LTX-2.5-Diffusers-toy", "ltx25")
    replace_diffusion_engine(monkeypatch, Engine)
    for name, empty in (("flags", {}), ("requests", []), ("file", {})):
        monkeypatch.setattr(Engine, name, empty)

    def run(*flags, layer="audio_attn1"):
        chosen = ("--layer", layer) if layer else ()
        return command(
            "capture_diffusion.py",
            "--kind",
            "ltx25",
            "--model-path",
            checkpoint,
            "--output-root",
            tmp_path / "run" / "dataset",
            *chosen,
            *flags,
        )

    (tmp_path / "teapot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    run.folder, run.image = tmp_path / "run", tmp_path / "teapot.png"
    return run


def settings(capture):
    return json.loads((capture.folder / "dataset" / "manifest.json").read_text())["settings"]


def test_a_run_sends_every_case_and_keeps_and_counts_the_videos(capture):
    result = capture(*SMALL, *MATH, "--reference-image", capture.image, "--num-outputs", 2)
    assert result.code == 0, result.err
    assert result.summary["videos"] == 6 and result.summary["captured"] == {AUDIO_DENSE: 3}
    assert sorted(path.name for path in (capture.folder / "videos").iterdir()) == sorted(
        f"{case}_{index}.mp4" for case in MEDIA["ltx25"].cases for index in (0, 1)
    )
    request, wanted = Engine.requests[2]
    assert request["case"] == "longer_video" and request["num_frames"] == wanted["num_frames"] == 17
    assert wanted["fps"] == 24 and wanted["generator_device"] == "cpu" and "image_path" not in wanted
    assert Engine.requests[1][1]["image_path"] == [str(capture.image)]
    assert ONE_BY_ONE in settings(capture)["engine"]["substitutions"]


def test_engine_flags_policy_and_steps_are_part_of_the_settings(capture):
    assert capture(*SMALL, "--audio-sdpa-backend", "math", "--case", "text_to_video").code == 0
    assert Engine.flags["load_diffusion_decoder"] and Engine.flags["diffusion_decoder_tiling"] is False
    assert Engine.flags["attention_backend"] == "torch_sdpa"
    found = settings(capture)
    assert found["selection"]["attention_steps"] == [1, 4, 7]
    assert found["selection"]["sdpa_backends"] == {"video": "default", "audio": "math"}
    policies = [text for text in found["engine"]["substitutions"] if "math" in text]
    assert len(policies) == 1 and policies[0].startswith("audio attention")
    assert ONE_BY_ONE not in found["engine"]["substitutions"]


def test_a_description_has_shapes_and_errors_and_no_tensors(capture, tmp_path):
    for _ in range(2):
        path = tmp_path / "summary.json"
        assert capture(*SMALL, "--case", "text_to_video", "--summary", path).code == 0
        found = json.loads(path.read_text())
        assert found["class"] == "seeded" and found["videos"] == 1 and found["complete"]
        [call] = found["calls"]
        assert call["axes"] == {"B": 1, "Nq": 1, "Nk": 1} and call["errors"]["o"]["mismatched"] == 0
        path.unlink()


def test_the_diffusion_decoder_decodes_only_what_captures_it(capture):
    assert capture(*SMALL, "--case", "text_to_video").code == 0
    assert Engine.requests[0][1]["use_diffusion_decoder"] is False
    options = diffusion_settings.DiffusionOptions(
        kind="ltx25",
        model_path=Path(),
        run=Path(),
        cases=[],
        sizes={},
        num_outputs=1,
        definitions=[],
        layers=list(LTX_LAYERS),
        steps=[],
        block=None,
        device="cpu",
        seed=0,
    )
    for layers, definitions, decoder in (
        (list(STAGES), list(STAGES.values()), True),
        (list(STAGES), [AUDIO_DENSE], False),
        (["audio_attn1"], [AUDIO_DENSE], False),
    ):
        assert replace(options, layers=layers, definitions=definitions).decoder is decoder


@pytest.mark.parametrize("file", [{"sound": None}, {"sound": 0}, {"width": 32}, {"frames": 8}])
def test_a_silent_or_wrong_video_ends_the_run(capture, file):
    Engine.file = file
    result = capture(*SMALL, "--case", "text_to_video")
    assert result.code == 2 and "MP4 files with sound" in result.err.splitlines()[-1]
    assert not json.loads((capture.folder / "dataset" / "manifest.json").read_text())["complete"]


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--size", "text_to_video=64x64"], "NAME=WxHxFRAMES"),
        (["--size", "text_to_video=64x64x16"], "multiple of 8"),
        (["--size", "text_to_video=64x80x9"], "multiples of 32"),
        (["--size", "text_to_video=32x64x9"], "64x64x9 or more"),
        ([*SMALL, "--layer", "diff_blocks"], "the decoder takes 224x224x17"),
        ([*SMALL, "--case", "image_to_video"], "pass --reference-image"),
        (["--audio-sdpa-backend", "flash"], "invalid choice"),
    ],
)
def test_bad_arguments_are_refused_before_the_engine_starts(capture, flags, words):
    result = capture(*flags)
    assert result.code == 2 and words in result.err.splitlines()[-1] and not Engine.requests


def test_sdpa_backends_are_not_for_images():
    result = command("capture_diffusion.py", "--kind", "image", "--model-path", "x", "--output-root", "y", *MATH)
    assert result.code == 2 and "not for --kind image" in result.err


@pytest.mark.parametrize(
    "content, size",
    [
        (mp4(224, 320, 17), (224, 320, 17)),
        (mp4(64, 64, 9, first=struct.pack(">I4sQ", 1, b"mdat", 21) + b"12345"), (64, 64, 9)),
        (mp4(64, 64, 9)[:-30], None),
        (mp4(64, 64, 9, sound=None), None),
        (mp4(64, 64, 9)[:12] + bytes(40), None),
        (b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 32, 64), (32, 64)),
        (b"\x89PNG\r\n", None),
        (b"", None),
    ],
)
def test_sizes_come_from_the_header(tmp_path, content, size):
    (tmp_path / "file").write_bytes(content)
    assert media_size(tmp_path / "file") == size
    assert media_size(tmp_path / "missing") is None
