"""The launcher of language-model captures with a stand-in engine: planning, requests, checks, refusals."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.launchers import write_configuration
from inference_kernels.capture.requests import Prompt, expected_definitions, keep
from inference_kernels.capture.run import RunFolder
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import read_json, write_json
from inference_kernels.engine import llm, llm_settings, summary
from inference_kernels.engine.llm import check_answers, flush, pending_cases, serve_case
from inference_kernels.engine.llm_settings import LlmOptions
from inference_kernels.models.registry import LANGUAGE_KINDS, MODELS, find_profile

HARDWARE = {"device": "cuda", "name": "toy", "compute_capability": "9.0", "cuda": "13.0"}


@pytest.fixture
def options(tmp_path, monkeypatch) -> LlmOptions:
    """Options of a checkpoint folder that holds only configuration and recipe, on a pretended Hopper GPU."""
    folder = write_configuration(tmp_path / "checkpoint", "qwen-next")
    monkeypatch.setattr(llm_settings, "describe_hardware", lambda device: HARDWARE)
    monkeypatch.setattr(llm_settings, "version", lambda name: "0.5.23")
    return LlmOptions("qwen-next", folder, tmp_path / "out" / "run", ["short_request", "cached_prefix"])


class ToyEngine:
    """Answers as planned, unless told otherwise; remembers what it was asked."""

    def __init__(self, cached: int = 0, clip: int = 0, busy: int = 0):
        self.cached, self.clip, self.busy, self.asked, self.flushed = cached, clip, busy, [], 0

    def flush_cache(self):
        self.flushed += 1
        self.busy -= 1
        return SimpleNamespace(success=self.busy < 0, message="running requests: 1")

    def generate(self, input_ids, sampling_params):
        self.asked.append((input_ids, sampling_params))
        first = len(self.asked) == 1
        return [
            {
                "meta_info": {
                    "prompt_tokens": len(ids),
                    "cached_tokens": 0 if first else self.cached,
                    "completion_tokens": sampling["max_new_tokens"] - self.clip,
                }
            }
            for ids, sampling in zip(input_ids, sampling_params, strict=True)
        ]


@pytest.mark.parametrize("profile, kind", [(name, kind) for kind in LANGUAGE_KINDS for name in MODELS[kind].profiles])
def test_profiles_are_consistent(profile, kind):
    found = find_profile(kind, profile)
    for case in found.cases.values():
        assert {name for steps in case.keep.values() for name in steps} <= set(found.layers)
        assert len(case.prompts) == len(case.outputs) <= found.flags["max_running_requests"]
        passes = kept_passes(case, found.flags["chunked_prefill_size"])
        for kind, steps in case.keep.items():
            assert all(step < passes.get(kind, 0) for numbers in steps.values() for step in numbers)
        longest = max(prompt.length + count for prompt, count in zip(case.prompts, case.outputs))
        assert longest + 7 <= found.flags["context_length"]
    if profile in ("seeded", "large"):
        defaults = [name for name, case in found.cases.items() if case.default]
        assert expected_definitions(found, defaults) == list(found.layers)
    assert found.seeded == (profile != "published")


def kept_passes(case, chunk: int) -> dict[str, int]:
    """Count the forward passes per kind that a case has at least, if all its requests start together."""
    tokens = sum(prompt.length for prompt in case.prompts) - case.cached[1]
    passes = {"prefill": -(-tokens // chunk)}
    for step in range(max(case.outputs) - 1):
        running = sum(count - 1 > step for count in case.outputs)
        kind = "decode" if running == len(case.outputs) else f"decode {running}"
        passes[kind] = passes.get(kind, 0) + 1
    return passes


@pytest.mark.parametrize("profile, kind", [(name, kind) for name in ("seeded", "large") for kind in LANGUAGE_KINDS])
def test_prompts_are_valid_distinct_and_share_what_they_say(profile, kind):
    profile, seen = find_profile(kind, profile), {}
    for name, case in profile.cases.items():
        for prompt in (*case.prompts, *([case.predecessor] if case.predecessor else [])):
            ids = prompt.tokens(profile.tokens, profile.image_token)
            text = [token for token in ids if token != profile.image_token]
            assert len(ids) == prompt.length and min(text) >= 3 and max(text) < profile.tokens
            assert len(set(ids)) > 0.25 * min(len(ids), profile.tokens)
            seen.setdefault(tuple(ids[:4]), []).append(name)
        if case.predecessor:
            before = case.predecessor.tokens(profile.tokens, None)
            for prompt in case.prompts:
                ids = prompt.tokens(profile.tokens, None)
                shared = next(i for i, (a, b) in enumerate(zip(ids, before)) if a != b)
                assert shared == prompt.start >= case.cached[1]
    assert all(len(set(names)) == 1 for names in seen.values()), "cases share a prefix by accident"


def test_a_long_prompt_does_not_repeat_itself():
    ids = Prompt(3, 400).tokens(103, None)
    windows = {tuple(ids[i : i + 8]) for i in range(len(ids) - 8)}
    assert len(windows) == len(ids) - 8
    assert ids[:100] == Prompt(3, 100).tokens(103, None)


def test_a_case_is_flushed_prepared_served_and_described(options):
    run, engine = RunFolder.open(options.run, {"class": "seeded"}), ToyEngine(cached=64)
    call = {"workload": {}, "record": {"request": {"case": "cached_prefix", "keep": {}, "prompt_tokens": [68]}}}
    original = engine.generate

    def generate(input_ids, sampling_params):
        if (run.root / "request.json").exists():
            request = read_json(run.root / "request.json")
            assert request["keep"] == options.profile.cases["cached_prefix"].keep
            write_json(run.root / "calls" / "a.json", call)
        return original(input_ids, sampling_params)

    engine.generate = generate
    serve_case(options, run, engine, "cached_prefix")
    (before, first), (target, second) = engine.asked
    assert engine.flushed == 1 and before[0][:64] == target[0][:64] and len(target[0]) == 68
    assert [sampling["max_new_tokens"] for sampling in first + second] == [1, 4] and second[0]["ignore_eos"]
    assert read_json(run.root / "calls" / "a.json")["record"]["request"] == {
        "case": "cached_prefix",
        "prompt_tokens": [68],
        "completion_tokens": [4],
        "cached_tokens": [64],
    }
    assert pending_cases(options, run) == ["short_request"]


@pytest.mark.parametrize(
    "engine, message",
    [(ToyEngine(cached=64, clip=1), "completion_tokens"), (ToyEngine(cached=0), "cached_tokens 64 to 64")],
)
def test_clipped_outputs_and_missed_caches_are_errors(options, engine, message):
    run = RunFolder.open(options.run, {})
    with pytest.raises(CaptureError) as caught:
        serve_case(options, run, engine, "cached_prefix")
    assert message in caught.value.expected and not run.finished_cases


def test_a_lost_prompt_token_is_an_error():
    answer = {"meta_info": {"prompt_tokens": 2, "completion_tokens": 4, "cached_tokens": 0}}
    with pytest.raises(CaptureError, match="prompt_tokens"):
        check_answers("case", [[3, 4, 5]], [answer], [4], [(0, 0)])


def test_a_busy_engine_is_waited_for_and_then_refused():
    engine, waits = ToyEngine(busy=3), []
    flush(engine, waits.append)
    assert len(waits) == 3
    with pytest.raises(CaptureError, match="running requests: 1"):
        flush(ToyEngine(busy=1000), waits.append)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"cuda_graph_backend_decode": "full"}, "CUDA graphs"),
        ({"cuda_graph_backend_prefill": None}, "CUDA graphs"),
        ({"disable_overlap_schedule": False}, "overlap"),
        ({"cuda_graph_config": {"decode": {}}}, "override"),
    ],
)
def test_graphs_and_overlap_are_refused_before_anything_is_loaded(options, flags, message):
    with pytest.raises(CaptureError, match=message):
        llm.open_run(replace(options, engine_flags=flags))
    assert not options.run.exists()


def test_a_context_that_would_clip_is_refused(options):
    with pytest.raises(CaptureError, match="at least 79"):
        llm.open_run(replace(options, context_limit=78))
    llm.open_run(replace(options, context_limit=79))


def test_settings_name_model_substitutions_and_layers(options):
    settings = llm_settings.settings(options)
    assert (settings["class"], settings["model"]["seed"], settings["substitutions"]) == ("seeded", 0, [])
    assert "/" not in json.dumps(settings["engine"]["environment"])


@pytest.mark.parametrize("capability, substituted, layout", [("9.0", 4, None), ("10.3", 0, "v41")])
def test_substitutions_are_for_hopper_only(options, monkeypatch, capability, substituted, layout):
    monkeypatch.setattr(llm_settings, "describe_hardware", lambda device: HARDWARE | {"compute_capability": capability})
    monkeypatch.setattr(llm_settings, "describe_model", lambda options: ({"id": "x"}, {}))
    settings = llm_settings.settings(replace(options, kind="deepseek41", cases=[]))
    assert len(settings["substitutions"]) == len(settings["engine"]["substitutions"]) == substituted
    assert settings["engine"]["environment"].get("SGLANG_DSV4_KV_LAYOUT") == layout


@pytest.mark.parametrize(
    "change, message",
    [({"kind": "qwen3-next-gdn"}, "kind qwen3-next-gdn"), ({"profile_name": "published"}, "a seeded one")],
)
def test_a_checkpoint_of_another_kind_is_refused(options, change, message):
    with pytest.raises(CaptureError, match=message):
        llm_settings.describe_model(replace(options, **change))


def test_a_checkpoint_whose_configuration_was_changed_is_refused(options):
    path = options.model_path / "config.json"
    write_json(path, read_json(path) | {"tie_word_embeddings": True})
    with pytest.raises(CaptureError, match="configuration of its recipe"):
        llm_settings.describe_model(options)


def test_an_engine_that_dies_leaves_the_finished_cases(options):
    run = llm.open_run(options)
    run.finish_case("short_request", [], 1.0)
    with pytest.raises(CaptureError, match="cached_prefix not captured") as caught:
        llm.capture(options, [sys.executable, "-c", "import os; os._exit(9)"], lambda line: None)
    assert "exit code 9" in caught.value.where
    assert llm.open_run(options).finished_cases == ["short_request"]


def test_operators_never_called_are_named(options):
    run = llm.open_run(options)
    for case in options.cases:
        run.finish_case(case, [], 1.0)
    with pytest.raises(CaptureError, match="none of sparse_index_select_bf16_h4_d128_topk512_blk4 .0 calls seen."):
        llm.capture(options, ["false"], lambda line: None)


def test_a_run_without_hooks_is_noticed_before_the_first_case(options):
    run = llm.open_run(options)
    with pytest.raises(CaptureError, match="scripts/sglang_plugin"):
        llm.require_hooks(run)
    (run.root / llm.READY).touch()
    llm.require_hooks(run)
    assert not (run.root / llm.READY).exists()


def test_a_summary_names_errors_and_the_passes_that_were_missed(options, tmp_path):
    run = RunFolder.open(tmp_path / "run", llm_settings.settings(options))
    for step, batch in ((1, 3), (0, 2)):
        operation = {"phase": "decode", "step": step, "batch": batch, "layer": 3, "call_path": "a -> b"}
        record = {
            "definition": "d",
            "workload": f"w{batch}",
            "operation": operation,
            "request": {"case": "three_requests", "prompt_tokens": [1, 1, 1]},
        }
        write_json(run.root / "calls" / f"w{batch}.json", {"workload": {"axes": {"N": batch}}, "record": record})
    figures = {"elements": 4, "mismatched": 0, "max_abs_error": 0.5, "relative_rms": 0.1, "tolerance_used": 0.9}
    write_json(run.root / "validation" / "w3.json", {"passed": True, "errors": {"y": figures | {"status": "pass"}}})
    run.finish_case("three_requests", [], 1.0)
    case = replace(
        options.profile.cases["three_requests"], keep=keep({0: ["d"]}, {0: ["d"], 1: ["d"]}, {2: {0: ["d"], 1: ["d"]}})
    )
    found = summary.text_document(run, {"three_requests": case})
    assert found["missed"] == [
        "three_requests, prefill 0, d",
        "three_requests, decode 0, d",
        "three_requests, decode 2 1, d",
    ]
    assert [(call["batch"], call["passed"], call["errors"]) for call in found["calls"]] == [
        (2, None, {}),
        (3, True, {"y": figures}),
    ]
    assert found["kind"] == "qwen-next" and found["engine"]["name"] == "sglang"
    assert summary.text_summary(run, {"three_requests": case})["captured"] == {
        "d": {"calls": 2, "max_abs_error": 0.5, "max_relative_rms": 0.1}
    }
