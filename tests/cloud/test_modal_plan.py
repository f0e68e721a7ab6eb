"""`run_modal_capture.py`: the published command lines with --dry-run, refusals, and a plan's commands."""

import runpy
import shlex

import pytest

from helpers.commands import SCRIPTS, command, process, require_one_line
from inference_kernels.cloud.estimates import DAY_SECONDS, Planned, capture_seconds, require_one_day
from inference_kernels.cloud.plan import CapturePlan, Choices
from inference_kernels.cloud.spec import ENGINE_IMAGE, Layout
from inference_kernels.core.errors import CaptureError

# The sequences of the published description; LOCKS is added.
MATH = "--audio-sdpa-backend math --video-sdpa-backend math"
SQUARE = "--reference-image /task/data/captures/image/results/square.png"
SERIAL = "--case short_request --case cold_main --case full_context_p50 --case full_context_p90"
PUBLISHED = f"""
--name image-model --kind image --prepare-model
--name image --kind image
--name image-4 --kind image --num-outputs 4
--name qwen-model --kind qwen-next --prepare-model
--name qwen-agentx --kind qwen-next
--name qwen-overlap --kind qwen-next --case overlap_p50 --case overlap_p95 --case overlap_p100
--name deepseek-model --kind deepseek41 --prepare-model
--name deepseek-agentx --kind deepseek41 {SERIAL} --case full_context_max --case overlap_p50
--name ltx-model --kind ltx25 --prepare-model
--name ltx --kind ltx25 {MATH} {SQUARE}
--name ltx-4 --kind ltx25 --num-outputs 4 {MATH} {SQUARE}
""".strip().split("\n")


def run(line: str, *more: object):
    return command("run_modal_capture.py", *shlex.split(line), "--lock-directory", "/nowhere/locks", *more)


@pytest.mark.parametrize("line", PUBLISHED)
def test_the_published_commands_can_be_planned(line):
    result = run(line, "--dry-run")
    assert result.code == 0 and result.err == "", result.err
    shown, prepares = result.summary, "--prepare-model" in line
    kind = shown["kind"]
    assert shown["gpus"] == (0 if prepares else 4 if kind == "deepseek41" else 1)
    assert shown["gpu"] == (None if prepares else "B300")
    assert shown["image"] == ENGINE_IMAGE and ENGINE_IMAGE.endswith("0b7dac5881d713d8")
    assert shown["volumes"] == [f"inference-kernels-{kind}", "inference-kernels-captures"]
    assert 600 <= shown["timeout_seconds"] <= DAY_SECONDS and shown["timeout_seconds"] % 600 == 0
    hours = shown["timeout_seconds"] / 3600
    assert shown["cost_inputs"]["gpu_hours"] == pytest.approx(shown["gpus"] * hours, abs=0.01)
    for part in ("gpu: ", "gpus: ", "image: ", "volumes: ", "timeout_seconds: ", "expected_files: ", "cost_inputs: "):
        assert any(text.startswith(part) for text in result.findings), part


@pytest.mark.parametrize("line", [line for line in PUBLISHED if "--prepare" not in line])
def test_the_capture_script_has_every_flag_of_the_planned_command(line):
    planned = run(line, "--dry-run").summary["command"]
    script = runpy.run_path(str(SCRIPTS / planned[1].rsplit("/", 1)[1]), run_name="imported")
    arguments = script["parser"]().parse_args(planned[2:])
    assert arguments.output_root.name == "dataset" and arguments.case
    if "--num-outputs 4" in line:
        assert arguments.num_outputs == 4
    if "ltx25" in line:
        assert arguments.audio_sdpa_backend == arguments.video_sdpa_backend == "math"
        assert str(arguments.reference_image) == "/task/data/captures/image/results/square.png"


def test_expected_files_name_what_is_known_before():
    shown = run("--name x --kind image --case text_to_image --case edit --num-outputs 2", "--dry-run").summary
    files = shown["expected_files"]
    assert {"results/edit_0.png", "results/edit_1.png", "dataset/counts/edit.json", "engine.log"} < set(files)
    assert "results/landscape_0.png" not in files
    assert any("block_causal_attention_cached_prefix" in name for name in files)


def test_a_local_reference_image_is_uploaded_beside_the_captures(tmp_path):
    (tmp_path / "cup.png").write_bytes(b"image")
    result = run(f"--name x --kind ltx25 --reference-image {tmp_path / 'cup.png'}", "--dry-run")
    assert result.summary["command"][-1] == "/task/data/uploads/x/reference.png"
    assert set(result.summary["cases"].values()) == {"can be sent"}


def test_no_package_is_needed_for_help_and_a_plan():
    line = shlex.split(PUBLISHED[1]) + ["--lock-directory", "/nowhere", "--dry-run"]
    for arguments in (["--help"], line):
        result = process("run_modal_capture.py", *arguments, before=("-S", "-E"))
        assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    "line, words",
    [
        ("--name a/b --kind image", "--name"),
        ("--name x --kind image --gpus 2", "text models"),
        ("--name x --kind qwen-next --num-outputs 2", "images and videos"),
        ("--name x --kind image --audio-sdpa-backend math", "ltx25"),
        ("--name x --kind image --prepare-model --retrieve-only", "exclude each other"),
        ("--name x --kind image --model-revision abc", "--prepare-model"),
        ("--name x --kind image --batch-sizes 1", "text models"),
        ("--name x --kind qwen-next --batch-sizes 0", "positive"),
        ("--name x --kind image --reference-image /nowhere.png", "no such file"),
        ("--name x --kind ltx25 --prepare-model", "no such file"),
        ("--name x --kind image --case cat", "one of text_to_image"),
        ("--name x --kind qwen-next --case full_context_max", "one of short_request"),
        ("--name x --kind image --timeout-hours 25", "at most 24 hours"),
    ],
)
def test_nonsense_is_refused_before_anything_is_rented(line, words):
    result = run(line)
    assert result.code == 2 and words in result.err.splitlines()[-1], result.err


@pytest.mark.parametrize(
    "line, words",
    [
        ("--name x --kind qwen-next --case overlap_p95", "block ids are not in agentx_shapes.json"),
        ("--name x --kind ltx25 --case image_to_video", "--reference-image"),
        ("--name x --kind image --case edit", "--reference-image"),
    ],
)
def test_a_case_that_cannot_be_sent_is_shown_in_the_plan_and_not_run(line, words, tmp_path):
    shown = run(line, "--dry-run")
    assert shown.code == 0 and any(words in state for state in shown.summary["cases"].values())
    require_one_line(run(f"{line} --runner local --local-root {tmp_path}"), "cases that can be sent", words)


@pytest.mark.parametrize(
    "kind, names",
    [
        (
            "deepseek41",
            ["short_request", "cold_main", "full_context_p50", "full_context_p90", "full_context_max", "overlap_p50"],
        ),
        ("qwen-next", ["short_request", "cold_main", "overlap_p50"]),
    ],
)
def test_every_case_with_block_ids_can_be_sent(kind, names):
    make(kind, cases=names).require_sendable()


def make(kind="image", **changes) -> CapturePlan:
    return CapturePlan(Choices(**{"name": "x", "kind": kind, "code_sha256": "0" * 64} | changes))


def test_the_time_limit_grows_with_the_cases_and_ends_at_a_day():
    one, all_cases = make(cases=["landscape"]), make()
    assert one.seconds < all_cases.seconds < make(num_outputs=4).seconds
    with pytest.raises(CaptureError, match="at most 24 hours"):
        require_one_day(capture_seconds("image", [Planned("long", DAY_SECONDS)]))
    assert make(timeout_seconds=700).seconds == 700


def test_locks_of_a_preparation_and_of_a_capture():
    assert make(prepare_model=True).lock_names == ["modal-volume-inference-kernels-image"]
    assert make("deepseek41", name="d").lock_names == ["modal-run-d"] + [f"modal-B300-{i}" for i in range(4)]
    assert set(make(name="a").lock_names) & set(make("ltx25", name="b").lock_names) == {"modal-B300-0"}


def test_flags_of_text_models_and_of_seeded_checkpoints():
    command = make("deepseek41", gpus=8, max_output_tokens=5).capture_command(Layout("/b"), "python3")
    joined = " ".join(command)
    assert "--engine-flag tp_size=8 --engine-flag ep_size=8" in joined and "--max-output-tokens 5" in joined
    assert "--profile published" in joined and "/b/model/deepseek-v4.1-flash" in joined
    seeded = make("qwen-next", seeded=True)
    assert "--profile seeded" in " ".join(seeded.capture_command(Layout("/b"), "python3"))
    assert seeded.gpus == 1 and "three_requests" in [case.name for case in seeded.cases]
    assert make(capture_flags=("--block", "1")).capture_command(Layout("/b"), "p")[-2:] == ["--block", "1"]
