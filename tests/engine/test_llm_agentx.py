"""AgentX cases in the published profiles: lengths, prompts, kept passes, cache hits, refusals. No engine."""

import runpy
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.commands import SCRIPTS, command, require_one_line
from helpers.launchers import write_configuration
from inference_kernels.agentx.prompts import AUTHORED_SHA256, authored_text, stand_in_tokens, token_lcp, tokens_sha256
from inference_kernels.agentx.shapes import load_cases
from inference_kernels.capture.requests import SPAN_RULE, expected_definitions
from inference_kernels.capture.run import RunFolder
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import write_json
from inference_kernels.engine import agentx, llm, llm_settings
from inference_kernels.engine.agentx import served_profile
from inference_kernels.engine.llm import serve_case
from inference_kernels.engine.llm_settings import LlmOptions
from inference_kernels.models.deepseek.spec import DOWN, GATE_UP, MIXED, ROUTER, SPARSE_128, SPARSE_640
from inference_kernels.models.qwen.spec import ATTENTION, INDEX
from inference_kernels.models.registry import LANGUAGE_KINDS, find_profile

AGENTX = ["deepseek41", "qwen-next"]
SHIPPED = {
    "short_request": ([128], [107]),
    "cold_main": ([2944], [1813]),
    "full_context_p50": ([142_016], [90]),
    "full_context_p90": ([549_504], [6765]),
    "full_context_max": ([989_824], [1204]),
    "overlap_p50": ([35_008, 35_392, 35_456], [120, 108, 126]),
}
HITS = {"full_context_p50": 141_568, "full_context_p90": 541_952, "full_context_max": 987_392}
HARDWARE = {"device": "cuda", "name": "toy", "compute_capability": "10.3", "cuda": "13.0"}
CONFIG = {"eos_token_id": 1, "text_config": {"vocab_size": 7900, "pad_token_id": 2}, "image_token_id": 7000}


class Tokenizer:
    """Words become ids by their hash, from 100 to 6999."""

    all_special_ids = [0, 1]
    added_tokens_decoder = {5: SimpleNamespace(special=True), 200: SimpleNamespace(special=False)}

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return stand_in_tokens(text, 100, 7000)


class PrefixEngine:
    """Remembers prompts until it is flushed, and finds their common prefixes, in whole pages."""

    def __init__(self, page: int, less: int = 0):
        self.page, self.less, self.known, self.asked = page, less, [], []

    def flush_cache(self):
        self.known.clear()
        self.asked.append("flush")
        return SimpleNamespace(success=True, message="")

    def generate(self, input_ids, sampling_params):
        self.asked.append((input_ids, [sampling["max_new_tokens"] for sampling in sampling_params]))
        return [self.answer(*pair) for pair in zip(input_ids, sampling_params, strict=True)]

    def answer(self, ids, sampling):
        shared = max((token_lcp(ids, other) for other in self.known), default=0)
        self.known.append(ids)
        hit = max(0, min(shared, len(ids) - 1) // self.page * self.page - self.less)
        return {
            "meta_info": {
                "prompt_tokens": len(ids),
                "completion_tokens": sampling["max_new_tokens"],
                "cached_tokens": hit,
            }
        }


@pytest.fixture
def options(tmp_path, monkeypatch) -> LlmOptions:
    """Options of a published DeepSeek checkpoint of which only configuration and index are there."""
    folder = tmp_path / "checkpoint"
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "model.safetensors.index.json", {"weight_map": {}})
    monkeypatch.setattr(agentx, "load_tokenizer", lambda path: Tokenizer())
    monkeypatch.setattr(llm_settings, "describe_hardware", lambda device: HARDWARE)
    monkeypatch.setattr(llm_settings, "version", lambda name: "0.5.23")
    return LlmOptions(
        "deepseek41", folder, tmp_path / "out" / "run", list(SHIPPED), "published", model_revision="0" * 40
    )


def steps(kind: str, case: str, limit: int | None = None) -> dict[str, list[int]]:
    """Return the passes to keep, which must be the same for all definitions of a phase."""
    found = {}
    for phase, by_name in served_profile(kind, "published", limit).cases[case].keep.items():
        (found[phase],) = {tuple(numbers) for numbers in by_name.values()}
    return {phase: list(numbers) for phase, numbers in found.items()}


@pytest.mark.parametrize("kind", AGENTX)
def test_cases_and_lengths_are_those_of_the_file(kind):
    cases = served_profile(kind, "published").cases
    assert {name: ([prompt.length for prompt in case.prompts], case.outputs) for name, case in cases.items()} == SHIPPED
    serial = [name for name, case in cases.items() if case.default]
    assert serial == (list(SHIPPED)[:-1] if kind == "deepseek41" else ["short_request", "cold_main"])


def test_other_profiles_are_as_they_were():
    for kind in LANGUAGE_KINDS:
        assert served_profile(kind, "seeded") is find_profile(kind, "seeded")
    assert not served_profile("qwen3-next-gdn", "published").cases


def test_the_longest_requests_fit_the_context(options):
    llm_settings.check_context(options)
    profile = served_profile("qwen-next", "published")
    # The longest input and the longest output that are published, if they were one request.
    assert profile.flags["context_length"] >= 249_088 + 7_948 + llm_settings.CONTEXT_MARGIN
    with pytest.raises(CaptureError, match="full_context_p90: expected a context of at least 556276"):
        llm_settings.check_context(replace(options, kind="qwen-next"))
    with pytest.raises(CaptureError, match="at least 556276"):
        llm_settings.check_context(replace(options, cases=["full_context_p90"], context_limit=556_275))
    llm_settings.check_context(replace(options, cases=["full_context_p90"], context_limit=549_515, max_output_tokens=4))


def test_definitions_by_phase():
    for kind in AGENTX:
        profile = served_profile(kind, "published")
        assert {name for names in profile.phases.values() for name in names} == set(profile.layers)
        assert expected_definitions(profile, ["short_request"]) == list(profile.layers)
    keep = served_profile("deepseek41", "published").cases["cold_main"].keep
    assert set(keep["prefill"]) == {ROUTER, SPARSE_128, SPARSE_640, GATE_UP, DOWN}
    assert set(keep["decode"]) == {ROUTER, MIXED, GATE_UP, DOWN}
    keep = served_profile("qwen-next", "published").cases["cold_main"].keep
    assert set(keep["prefill"]) == set(keep["decode"]) == {INDEX, ATTENTION}


@pytest.mark.parametrize(
    "case, prefill, decode",
    [
        ("short_request", [0], [0, 52, 105]),
        ("cold_main", [0], [0, 905, 1811]),
        # 7,552 tokens are left to compute: 4,096 and 3,456.
        ("full_context_p90", [0, 1], [0, 3381, 6763]),
        ("full_context_max", [0], [0, 601, 1202]),
        # 35,008, then 1,088 and 1,152 beyond the pages shared with earlier members: ten passes.
        ("overlap_p50", [0, 4, 9], [0, 53, 106]),
    ],
)
def test_early_middle_and_last_passes_are_kept(case, prefill, decode):
    assert steps("deepseek41", case) == {"prefill": prefill, "decode": decode}


def test_a_cold_request_of_many_chunks():
    profile, trace = served_profile("qwen-next", "published"), load_cases()["full_context_p50"]
    cold = replace(trace, predecessor=None)
    keep = agentx.traced_case(profile, "qwen-next", cold, None).keep
    assert keep["prefill"][INDEX] == [0, 17, 34] and 34 * 4096 < 142_016 <= 35 * 4096


def test_a_cap_of_the_output_moves_the_last_step():
    assert steps("deepseek41", "overlap_p50", 5) == {"prefill": [0, 4, 9], "decode": [0, 1, 3]}
    assert steps("deepseek41", "full_context_p90", 2) == {"prefill": [0, 1], "decode": [0]}
    assert steps("deepseek41", "short_request", 1) == {"prefill": [0]}
    capped = served_profile("deepseek41", "published", 1)
    assert MIXED not in expected_definitions(capped, list(capped.cases))


def test_a_request_without_output_generates_one_token():
    trace = load_cases()["short_request"]
    silent = replace(trace, requests=(replace(trace.requests[0], output_tokens=0),))
    case = agentx.traced_case(served_profile("qwen-next", "published"), "qwen-next", silent, None)
    assert case.outputs == [1] and set(case.keep) == {"prefill"}
    assert case.trace.record_fields()["output_tokens"] == [0]


@pytest.mark.parametrize("name", SHIPPED)
def test_serving_sends_exact_lengths_after_the_predecessor(options, name):
    lengths, outputs = SHIPPED[name]
    run, engine = RunFolder.open(options.run, {"class": "published"}), PrefixEngine(256)
    serve_case(options, run, engine, name)
    flushed, *before, (prompts, wanted) = engine.asked
    assert flushed == "flush" and [len(ids) for ids in prompts] == lengths and wanted == outputs
    assert all(100 <= ident < 7000 for ids in prompts for ident in set(ids))
    assert len(before) == (name in HITS)
    for (warm,), tokens in before:
        assert tokens == [1] and len(warm) == HITS[name] and warm == prompts[0][: len(warm)]
    assert run.finished_cases == [name]


def test_members_of_a_group_share_their_prefix_and_keep_their_order(options):
    case = options.profile.cases["overlap_p50"]
    prompts = [llm.tokens(options, prompt) for prompt in case.prompts]
    first, second, third = prompts
    assert first[: 536 * 64] == second[: 536 * 64] == third[: 536 * 64]
    assert max(agentx.shared_tokens(prompts, None)) < 537 * 64
    assert agentx.cached_ranges(options.profile, case, prompts, None) == [(0, 536 * 64)] * 3


def test_the_record_names_text_tokenizer_rule_and_trace(options):
    case = options.profile.cases["full_context_p50"]
    before, target = (llm.tokens(options, prompt) for prompt in (case.predecessor, case.prompts[0]))
    found = llm.describe_request(replace(options, max_output_tokens=7), case, [target], before)
    base = agentx.base_ids(options.model_path)
    assert found["prompt_rule"] == SPAN_RULE and found["text_sha256"] == AUTHORED_SHA256
    assert found["base_sha256"] == tokens_sha256(base) and len(found["prompt_sha256"]) == 64
    assert found["prompt_tokens"] == [142_016] and found["predecessor_tokens"] == 141_568
    assert found["output_tokens"] == [7] and found["trace"]["output_tokens"] == [90]
    assert found["expected_cached_tokens"] == [[141_568, 141_568]] and found["page_size"] == 256
    assert found["shared_prompt_tokens"][0] >= 141_568
    assert found["trace"] == case.trace.record_fields() and found["trace"]["provenance"] == "reconstructed"


@pytest.mark.parametrize(
    "kind, page, less, message",
    [
        ("deepseek41", 256, 256, "cached_tokens 141568 to 141568 in pages of 256"),
        ("qwen-next", 64, 4160, "cached_tokens 137472 to 141568 in pages of 64"),
        ("qwen-next", 64, 32, "in pages of 64"),
        ("qwen-next", 64, 4096, None),
        ("deepseek41", 256, 0, None),
    ],
)
def test_hits_outside_the_expected_range_are_errors(options, kind, page, less, message):
    options = replace(options, kind=kind)
    run, engine = RunFolder.open(options.run, {"class": "published"}), PrefixEngine(page, less)
    if message is None:
        serve_case(options, run, engine, "full_context_p50")
        return
    with pytest.raises(CaptureError, match=message):
        serve_case(options, run, engine, "full_context_p50")
    assert not run.finished_cases


def test_a_predecessor_must_be_computed_in_full(options):
    run, engine = RunFolder.open(options.run, {"class": "published"}), PrefixEngine(256)
    engine.flush_cache = lambda: SimpleNamespace(success=True, message="")
    case = options.profile.cases["full_context_p50"]
    engine.known.append(llm.tokens(options, case.predecessor))
    with pytest.raises(CaptureError, match="predecessor of full_context_p50: expected cached_tokens 0 to 0"):
        serve_case(options, run, engine, "full_context_p50")


@pytest.mark.parametrize(
    "config, message",
    [
        ({"vocab_size": 3000}, "text tokens below 3000"),
        ({"model_type": "toy"}, "vocab_size"),
        ({"vocab_size": 7900, "image_token_id": stand_in_tokens(authored_text(), 100, 7000)[9]}, "token ids"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(options, config, message):
    write_json(options.model_path / "config.json", config)
    with pytest.raises(CaptureError, match=message):
        agentx.base_ids(options.model_path)


def test_the_checkpoint_is_named_by_the_profile_and_its_revision_by_the_user(options):
    model, recipes = llm_settings.describe_model(options)
    assert (model["id"], model["revision"], recipes) == ("deepseek-ai/DeepSeek-V4.1-Flash", "0" * 40, {})
    assert llm_settings.describe_model(replace(options, kind="qwen-next"))[0]["id"].startswith("nvidia/")
    with pytest.raises(CaptureError, match="--model-revision"):
        llm_settings.describe_model(replace(options, model_revision=None))
    with pytest.raises(CaptureError, match="--model-id"):
        llm_settings.describe_model(replace(options, kind="qwen3-next-gdn"))
    settings = llm.open_run(options).manifest["settings"]
    assert (settings["class"], settings["model"]["id"]) == ("published", "deepseek-ai/DeepSeek-V4.1-Flash")


LINE = ("capture_llm.py", "--profile", "published", "--model-path", "/nowhere", "--output-root", "/nowhere/run")


@pytest.mark.parametrize(
    "kind, case, words",
    [
        ("deepseek41", "shortest", "expected one of short_request"),
        ("qwen-next", "context_p99", "published figures only for context_p99"),
    ],
)
def test_unknown_and_unpublished_cases_are_refused_in_one_line(kind, case, words):
    require_one_line(command(*LINE, "--kind", kind, "--case", case), words)


@pytest.mark.parametrize(
    "kind, special, too_long", [("deepseek41", 8000, "full_context_p50"), ("qwen-next", 32000, "full_context_p90")]
)
def test_a_seeded_checkpoint_rehearses_the_published_cases(tmp_path, monkeypatch, kind, special, too_long):
    write_configuration(tmp_path, kind)
    monkeypatch.setattr(llm_settings, "describe_hardware", lambda device: HARDWARE)
    monkeypatch.setattr(llm_settings, "version", lambda name: "0.5.23")
    options = LlmOptions(
        kind,
        tmp_path,
        tmp_path / "out" / "run",
        ["short_request", "cold_main", "overlap_p50"],
        "rehearsal",
        max_output_tokens=8,
    )
    run = llm.open_run(options)
    assert (run.settings["class"], run.settings["model"]["id"]) == ("seeded", f"seeded/{kind}")
    published = served_profile(kind, "published", 8).cases
    assert options.profile.cases["cold_main"].keep == published["cold_main"].keep
    engine = PrefixEngine(options.profile.page_size)
    for name in options.cases:
        serve_case(options, run, engine, name)
    sent = [ids for prompts, _ in engine.asked[1::2] for ids in prompts]
    assert [len(ids) for ids in sent] == [128, 2944, 35_008, 35_392, 35_456]
    assert all(3 <= ident < special for ids in sent for ident in set(ids))
    with pytest.raises(CaptureError, match=f"{too_long}: expected a context"):
        llm_settings.check_context(replace(options, cases=[too_long]))


def test_contest_data_has_no_requests():
    result = command(*LINE, "--kind", "qwen3-next-gdn")
    assert result.code == 2 and "has no cases" in result.err and "import_mlsys26_gdn.py" in result.err


@pytest.mark.parametrize(
    "cases, chosen",
    [
        ([], ["short_request", "cold_main"]),
        (["overlap_p50"], ["overlap_p50"]),
        (["cold_main", "short_request"], ["short_request", "cold_main"]),
    ],
)
def test_the_command_chooses_serial_cases_unless_it_is_told(cases, chosen):
    script = runpy.run_path(str(SCRIPTS / "capture_llm.py"), run_name="imported")
    words = [*LINE[1:], "--kind", "qwen-next", *(word for case in cases for word in ("--case", case))]
    assert script["options"](script["parser"]().parse_args(words), pytest.fail).cases == chosen
