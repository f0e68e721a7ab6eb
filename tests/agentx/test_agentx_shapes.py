"""agentx_shapes.json: the shipped file, what readers refuse, and the command that writes it."""

import copy
import hashlib
import json

import pytest

from helpers.agentx_toys import REAL, WEKA, marker, real_sessions, request, session, write_lines
from helpers.commands import command, require_one_line
from inference_kernels.agentx import published, select
from inference_kernels.agentx import shapes as agentx_shapes
from inference_kernels.agentx.published import Known, published_shapes
from inference_kernels.agentx.shapes import choose, load_cases, shape_errors
from inference_kernels.core.errors import SchemaError

pytestmark = pytest.mark.no_torch


SCRIPT = "select_agentx_requests.py"
REVISION = "94f6046dfd9c0c8bc0cdb24a5aa6579bac8669bf"
OTHER = ("--dataset", "callanjfox/kv-cache-tester", "--trace-revision", REVISION)


def test_the_shipped_file_is_what_the_command_writes(tmp_path, repository):
    result = command(SCRIPT, "--published", "--output", tmp_path / "shapes.json")
    assert (result.code, result.err) == (0, "")
    assert (tmp_path / "shapes.json").read_bytes() == (repository / "agentx_shapes.json").read_bytes()
    assert result.summary["cases"] == 15


def test_the_shipped_cases_have_the_published_figures_and_no_recorded_content():
    cases = load_cases()
    assert {case.provenance for case in cases.values()} == {"published_figures", "reconstructed"}
    runnable = {
        name: [(r.input_tokens, r.output_tokens) for r in case.requests]
        for name, case in cases.items()
        if case.runnable
    }
    assert runnable == {
        "short_request": [(128, 107)],
        "cold_main": [(2_944, 1_813)],
        "full_context_p50": [(142_016, 90)],
        "full_context_p90": [(549_504, 6_765)],
        "full_context_max": [(989_824, 1_204)],
        "overlap_p50": [(35_008, 120), (35_392, 108), (35_456, 126)],
    }
    assert sum(output for requests in runnable.values() for _, output in requests) == 10_333
    assert cases["full_context_p90"].predecessor.input_tokens == 541_952  # the published cache hit
    assert all(case.predecessor is None for case in cases.values() if not case.shared_prefix_blocks)
    assert not json.loads(agentx_shapes.SHAPES.read_text())["trace"]["content_available"]


def test_choice_of_cases():
    cases = load_cases()
    serial = ["short_request", "cold_main", "full_context_p50", "full_context_p90", "full_context_max"]
    assert [case.name for case in choose(cases, None, "deepseek41")] == serial
    assert [case.name for case in choose(cases, None, "qwen-next")] == serial[:2]
    named = choose(cases, ["overlap_p50", "short_request", "overlap_p50"], "qwen-next")
    assert [case.name for case in named] == ["overlap_p50", "short_request"]
    with pytest.raises(SchemaError, match="expected one of short_request, .*; found full_context"):
        choose(cases, ["full_context"], "deepseek41")
    with pytest.raises(SchemaError, match="published figures only for overlap_p95"):
        choose(cases, ["overlap_p95"], "qwen-next")


def test_a_record_says_what_ran():
    fields = load_cases()["full_context_p90"].record_fields()
    assert fields == {
        "case": "full_context_p90",
        "provenance": "reconstructed",
        "trace_revision": published.REVISION,
        "input_tokens": [549_504],
        "output_tokens": [6_765],
        "shared_prefix_blocks": 8_468,
        "predecessor_tokens": 541_952,
    }
    assert json.loads(json.dumps(fields)) == fields


def edit(path: str, value):
    """A function that sets one place of the shapes, written as `cases.2.requests.0.blocks`."""

    def change(shapes: dict) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            shapes = shapes[part]
        shapes[last] = value

    return change


FAULTS = {
    "recorded without content": (edit("cases.0.provenance", "recorded"), "no row of the trace was read"),
    "content without records": (edit("trace.content_available", True), "although the trace was read"),
    "name twice": (edit("cases.1.name", "short_request"), "two cases short_request"),
    "half a block": (edit("cases.0.requests.0.input_tokens", 129), "129 tokens in 2 blocks"),
    "blocks": (edit("cases.0.requests.0.blocks", 3), "3 blocks, but 2 block ids"),
    "block twice": (edit("cases.0.requests.0.hash_runs", [[0, 1], [0, 1]]), "a block twice"),
    "runs": (edit("cases.0.requests.0.hash_runs", [[0, 1], [1, 1]]), "continue each other"),
    "shared blocks": (edit("cases.2.shared_prefix_blocks", 2_213), "2213, block ids share 2212"),
    "matrix": (edit("cases.12.group_shared_prefix_blocks.0.1", 535), "differ from the block ids"),
    "other session": (edit("cases.2.predecessor.session_id", "x"), "requests of several sessions"),
    "two targets": (edit("cases.0.mode", "group"), "group_shared_prefix_blocks"),
    "target of a case without content": (edit("cases.0.provenance", "published_figures"), "1 requests"),
    "no target": (edit("cases.0.requests", []), "0 requests in a serial case"),
    "negative output": (edit("cases.0.requests.0.output_tokens", -1), "less than the minimum"),
    "no blocks at all": (edit("cases.0.requests.0.hash_runs", None), "not of type 'array'"),
    "unknown kind": (edit("cases.0.kinds", ["gpt"]), "is not one of"),
    "unknown key": (edit("cases.0.extra", 1), "extra"),
    "unknown version": (edit("schema_version", 2), "1 was expected"),
    "no cases": (edit("cases", {}), "not of type 'array'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_inconsistent_files_are_refused(tmp_path, name):
    change, fragment = FAULTS[name]
    shapes = copy.deepcopy(published_shapes())
    assert not shape_errors(shapes, "here")
    change(shapes)
    (tmp_path / "shapes.json").write_text(json.dumps(shapes))
    with pytest.raises(SchemaError, match="shapes.json") as refusal:
        load_cases(tmp_path / "shapes.json")
    assert fragment in refusal.value.line()


def test_a_missing_or_damaged_file_is_refused(tmp_path):
    with pytest.raises(SchemaError, match="expected a file"):
        load_cases(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text(agentx_shapes.SHAPES.read_text()[:-30])
    with pytest.raises(SchemaError, match="valid JSON"):
        load_cases(tmp_path / "cut.json")


def test_another_trace_gives_recorded_cases_and_the_same_bytes_again(tmp_path):
    trace = write_lines(tmp_path / "real.jsonl", real_sessions())
    outputs = [tmp_path / "one.json", tmp_path / "two.json"]
    for output in outputs:
        result = command(SCRIPT, "--trace", trace, *OTHER, "--output", output)
        assert (result.code, result.err) == (0, "")
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert result.summary | {"output": ""} == {
        "output": "",
        "dataset": "callanjfox/kv-cache-tester",
        "revision": REVISION,
        "requests": 59,
        "cases": 12,
        "without_request": 3,
        "differences": 0,
    }
    shapes = json.loads(outputs[0].read_bytes())
    assert shapes["trace"]["sha256"] == hashlib.sha256(trace.read_bytes()).hexdigest()
    assert shapes["selection"]["nested_times"] == "relative"
    cases = load_cases(outputs[0])
    assert all(
        case.runnable and case.provenance == "recorded" and name.startswith("other_") for name, case in cases.items()
    )
    reuse = cases["other_prefix_reuse"]
    assert reuse.predecessor.blocks >= reuse.shared_prefix_blocks > 0


@pytest.mark.parametrize("name", REAL)
def test_one_session_in_a_json_file(tmp_path, name):
    result = command(SCRIPT, "--trace", WEKA / f"{name}.json", *OTHER, "--output", tmp_path / "shapes.json")
    assert (result.code, result.err) == (0, "") and result.summary["cases"] > 0


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """pinned(sessions): a small trace that passes for the published one."""

    def write(sessions: list[dict]):
        content = write_lines(tmp_path / "traces.jsonl", sessions).read_bytes()
        monkeypatch.setattr(published, "BYTES", len(content))
        monkeypatch.setattr(published, "SHA256", hashlib.sha256(content).hexdigest())
        known = {
            "short_request": Known(("qwen-next",), inputs=(64,), outputs=(70,), certain=True),
            "overlap_p50": Known(("qwen-next",), "group", members=1),
        }
        monkeypatch.setattr(select, "CASES", known)
        monkeypatch.setattr(select, "OVERLAP_PERCENTS", {"overlap_p50": 50})
        return tmp_path / "traces.jsonl"

    return write


def test_the_pinned_trace_needs_no_name(tmp_path, pinned):
    trace = pinned([session("a", [request([1], out=70)]), session("b", [request([1], out=90)])])
    result = command(SCRIPT, "--trace", trace, "--output", tmp_path / "shapes.json")
    assert (result.code, result.err) == (0, "")
    assert result.summary["dataset"] == published.DATASET and result.summary["differences"] > 10
    assert "note requests: published 98827, found 2" in result.findings
    case = load_cases(tmp_path / "shapes.json")["short_request"]
    assert (case.name, case.provenance) == ("short_request", "recorded")
    again = command(SCRIPT, "--trace", trace, *OTHER, "--output", tmp_path / "shapes.json")
    require_one_line(again, "whose SHA-256 this file has", "leave --dataset and --trace-revision out")


WRONG_ASSUMPTIONS = {
    "order": ([session("b", [request([1], out=70)]), session("a", [request([1])])], "order of their ids"),
    "times": ([session("a", [request([1], out=70), marker(5.0, [request([2], 1.0)])])], "nested times"),
    "keys": ([session("a", [request([1], out=70)], totals={})], "the keys"),
    "input": ([session("a", [request([1, 2], out=70)])], "an input of 64 tokens"),
    "lengths": ([session("a", [request([1, 2], out=70) | {"in": 64}])], "64 tokens in 2 blocks of 64"),
}


@pytest.mark.parametrize("name", WRONG_ASSUMPTIONS)
def test_the_pinned_trace_has_to_be_what_the_rules_assume(tmp_path, pinned, name):
    sessions, fragment = WRONG_ASSUMPTIONS[name]
    result = command(SCRIPT, "--trace", pinned(sessions), "--output", tmp_path / "shapes.json")
    require_one_line(result, fragment)
    assert not (tmp_path / "shapes.json").exists()


def test_another_file_is_refused(tmp_path, pinned):
    trace = pinned([session("a", [request([1], out=70)])])
    content = trace.read_bytes()
    trace.write_bytes(content[:-30])
    require_one_line(command(SCRIPT, "--trace", trace), f"{len(content)} bytes", f"found {len(content) - 30}")
    trace.write_bytes(content.replace(b'"out":70', b'"out":71'))
    require_one_line(command(SCRIPT, "--trace", trace), "SHA-256", "--trace-revision")


BAD_ARGUMENTS = {
    "no source": ((), "one of the arguments --trace --published is required"),
    "short revision": (("--trace", "x", "--trace-revision", "main"), "40 hexadecimal digits"),
    "name without trace": (("--published", "--dataset", "x"), "belong to --trace"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name):
    arguments, fragment = BAD_ARGUMENTS[name]
    result = command(SCRIPT, *arguments)
    assert result.code == 2 and fragment in result.err


def test_another_trace_needs_a_name_and_an_output(tmp_path):
    trace = WEKA / "trace_0026.json"
    result = command(SCRIPT, "--trace", trace, *OTHER)
    assert result.code == 2 and "--output is needed" in result.err
    require_one_line(command(SCRIPT, "--trace", trace, "--trace-revision", REVISION), "--dataset")
    require_one_line(command(SCRIPT, "--trace", tmp_path / "none.jsonl"), "none.jsonl", "check the path")
    trace = WEKA / "neon_trace_0080.json"
    result = command(SCRIPT, "--trace", trace, *OTHER, "--output", tmp_path / "x.json")
    require_one_line(result, "hash_id_scope = 'global'")
