"""Population figures and the rules of every case, on made-up and on real sessions."""

import json
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.agentx_toys import marker, real_sessions, request, session, write_lines
from inference_kernels.agentx import select as agentx_select
from inference_kernels.agentx.blocks import TraceError
from inference_kernels.agentx.population import Trace, figures, in_flight_at_starts, peak_group, percentile
from inference_kernels.agentx.published import CASES, Known
from inference_kernels.agentx.select import overlap_sizes, select_cases
from inference_kernels.agentx.trace import nested_times_are_relative, read_sessions

pytestmark = pytest.mark.no_torch


@pytest.fixture
def trace(tmp_path):
    def read(sessions: list[dict]) -> Trace:
        path = write_lines(tmp_path / "trace.jsonl", sessions)
        return Trace(tuple(read_sessions(path, nested_times_are_relative(path))))

    return read


@pytest.fixture
def real(trace):
    return trace(real_sessions())


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([1, 50, 90, 95, 99, 100]))
@settings(deadline=None)
def test_percentile_is_the_nearest_rank(values, percent):
    found = percentile(values, percent)
    at_most = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert below < percent / 100 * len(values) <= at_most + 1e-9
    assert found == sorted(values)[ceil(round(percent * len(values) / 100, 9)) - 1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12))
@settings(deadline=None)
def test_flight_agrees_with_counting(tmp_path_factory, times):
    items = [request([place], float(start), api_time=float(lasting)) for place, (start, lasting) in enumerate(times)]
    path = write_lines(tmp_path_factory.getbasetemp() / "flight.jsonl", [session("s", items)])
    (found,) = read_sessions(path, False)
    flying = {time: [r.index for r in found.requests if r.start <= time < r.end] for time in range(15)}
    peak = max(map(len, flying.values()))
    first = min(time for time in flying if len(flying[time]) == peak)
    assert sorted(r.index for r in peak_group(found)) == (flying[first] if peak else [])
    assert in_flight_at_starts(found) == [len({*flying[int(r.start)], r.index}) for r in found.requests]


def test_figures_of_the_real_sessions(real):
    found = figures(real)
    expected = {
        "sessions": 3,
        "sessions_with_subagents": 1,
        "subagent_groups": 4,
        "requests": 59,
        "requests_main": 15,
        "requests_nested": 44,
        "requests_cold": 4,
        "requests_partial": 54,
        "requests_full": 1,
        "requests_of_whole_blocks": 0,
        "input_max": 137_529,
        "session_peak_requests_p50": 1,
        "session_peak_requests_max": 3,
        "block_runs_max": 2,
    }
    assert {name: found[name] for name in expected} == expected
    inputs = sorted(r.input_tokens for r in real.requests)
    assert (found["input_p50"], found["input_p90"]) == (inputs[29], inputs[53])


def by_name(entries: list[dict]) -> dict[str, dict]:
    return {entry["name"]: entry for entry in entries}


def test_cases_of_the_real_sessions(real):
    entries, statistic, empty = select_cases(real, pinned=False)
    cases = by_name(entries)
    assert statistic == "session_peak"
    # The longest request is the one whose whole prompt was seen before; it has four tokens of output only.
    assert empty == ["other_full_context_max", "other_context_p99", "other_full_prefix_reuse"]
    assert {entry["matched_published"] for entry in entries} == {None}
    picked = {
        name: (case["requests"][0]["session_id"], case["requests"][0]["request_index"])
        for name, case in cases.items()
        if case["mode"] == "serial"
    }
    assert picked["other_short_request"] == ("trace_0277", 1)
    assert picked["other_cold_main"] == ("trace_0026", 0)
    assert picked["other_prefix_reuse"] == picked["other_context_p50"]
    group = cases["other_overlap_p100"]
    assert [member["request_index"] for member in group["requests"]] == [11, 20, 34]
    assert group["group_shared_prefix_blocks"] == [[712, 180, 0], [180, 655, 0], [0, 0, 502]]


def toy_trace() -> list[dict]:
    """Ten requests of one to ten blocks' length or so, with ties that the published figures decide."""
    first = [
        request([1], out=70),
        request([1, 2], 1.0, out=5),
        request([1, 2], 2.0, out=20),
        request([1, 2, 3, 4], 3.0, out=7),
        request([1, 2, 3, 5], 4.0, out=9),
    ]
    second = [
        request(list(range(6)), out=2_000),
        marker(1.0, [request(list(range(8)), 0.0, out=3), request([*range(8), 9], 5.0, out=4)]),
    ]
    third = [request([1], out=90), request(list(range(1, 5)), 1.0, out=9)]
    return [session("a", first), session("b", second), session("c", third)]


TOY = {
    "short_request": Known(("qwen-next",), inputs=(64,), outputs=(90,), certain=True),
    "cold_main": Known(("qwen-next",), inputs=(384,), outputs=(2_000,), certain=True),
    "full_context_p50": Known(("deepseek41",), inputs=(256,), outputs=(9,), certain=True, window=(3, 3)),
    "full_context_max": Known(("deepseek41",), inputs=(576,)),
    "full_prefix_reuse": Known(("qwen-next",)),
    "long_response": Known(("qwen-next",), outputs=(7_948,)),
    "subagent_first": Known(("qwen-next",)),
    "overlap_p50": Known(("qwen-next",), "group", (384, 512), (3, 2_000), members=2),
    "overlap_p95": Known(("qwen-next",), "group", members=2),
    "overlap_p100": Known(("qwen-next",), "group", members=9),
}


@pytest.fixture
def toy(trace, monkeypatch):
    """toy(trace, changes): names and entries of a selection that knows the toy figures, changed as said."""

    def select(sessions: list[dict] | None = None, **changes: Known):
        monkeypatch.setattr(agentx_select, "CASES", TOY | changes)
        return select_cases(trace(sessions or toy_trace()), pinned=True)

    return select


def first(entry: dict) -> tuple:
    return entry["requests"][0]["session_id"], entry["requests"][0]["request_index"]


def test_rules_and_ties(toy):
    entries, _, empty = toy()
    cases = by_name(entries)
    assert (first(cases["short_request"]), cases["short_request"]["candidates"]) == (("c", 0), 2)
    assert cases["short_request"]["predecessor"] is None
    assert first(cases["cold_main"]) == ("b", 0)
    assert (first(cases["full_context_p50"]), cases["full_context_p50"]["candidates"]) == (("a", 4), 3)
    assert cases["full_context_p50"]["predecessor"]["request_index"] == 3
    assert first(cases["full_context_max"]) == ("b", 2)
    assert cases["full_context_max"]["predecessor"]["hash_runs"] == [[0, 8]]
    assert first(cases["full_prefix_reuse"]) == ("a", 2)  # its twin before it has too little output
    assert first(cases["long_response"]) == ("b", 0)
    assert first(cases["subagent_first"]) == ("b", 1)
    assert {name: case["matched_published"] for name, case in cases.items()} == {
        "short_request": True,
        "cold_main": True,
        "full_context_p50": True,
        "full_context_max": True,
        "full_prefix_reuse": None,
        "long_response": False,
        "subagent_first": None,
        "overlap_p50": False,
        "overlap_p95": False,
        "overlap_p100": False,
    }
    assert empty == []


def test_without_published_figures_the_file_order_decides(toy):
    plain = {name: Known(known.kinds, known.mode) for name, known in TOY.items()}
    cases = by_name(toy(**plain)[0])
    assert first(cases["short_request"]) == ("a", 0)
    assert first(cases["full_context_p50"]) == ("a", 3)


def test_a_published_window_decides_between_equal_outputs(toy):
    cases = by_name(toy(full_context_p50=replace(TOY["full_context_p50"], window=(1, 1)))[0])
    assert first(cases["full_context_p50"]) == ("c", 1)


def test_another_input_than_the_published_one_is_an_error(toy):
    with pytest.raises(TraceError, match="case cold_main: expected an input of 320 tokens, .* found 384"):
        toy(cold_main=replace(TOY["cold_main"], inputs=(320,)))
    with pytest.raises(TraceError, match="case cold_main: .* none that the rule allows"):
        toy([session("a", [request([1], out=70)])])


def test_requests_that_do_not_fit_the_context_are_left_out(toy, monkeypatch):
    limits = {"deepseek41": 576 + 4 + 7, "qwen-next": 384 + 2_000 + 6}
    monkeypatch.setattr(agentx_select, "CONTEXT_LIMITS", limits)
    with pytest.raises(TraceError, match="case cold_main"):  # two thousand tokens of output are one too many
        toy()
    limits |= {"qwen-next": 262_144}
    assert "full_context_max" not in toy()[2]
    limits |= {"deepseek41": 576 + 4 + 6}
    assert "full_context_max" in toy()[2]


def picks(trace: Trace, name: str) -> tuple | None:
    entry = by_name(select_cases(trace, pinned=False)[0]).get(f"other_{name}")
    return entry and first(entry)


def test_a_cold_request_inside_a_session_is_not_its_start(trace):
    found = trace([session("a", [request([1, 2, 3], out=2_000), request([9], 1.0, out=2_000)])])
    assert picks(found, "cold_main") == ("a", 0)


def test_of_equally_long_prompts_the_one_with_the_longest_shared_prefix_counts(trace):
    found = trace([session("a", [request([1, 2, 3]), request([1, 4, 5], 1.0), request([1, 2, 6], 2.0)])])
    assert picks(found, "prefix_reuse") == ("a", 2)


def test_only_the_first_request_of_a_subagent_counts(trace):
    later = [request([5, 6], 0.0), request([5, 6, 7, 8], 1.0)]
    found = trace(
        [
            session(
                "a",
                [request([1]), marker(1.0, [request([1, 2, 3, 4], 0.0), *later]), marker(9.0, [request([1, 9], 0.0)])],
            )
        ]
    )
    assert picks(found, "subagent_first") == ("a", 4)  # the median of 4 and 2 blocks is 2, by nearest rank


def test_the_predecessor_has_to_fit_too(trace, monkeypatch):
    found = trace([session("a", [request([1, 2, 3, 4]), request([1, 2], 1.0, out=20)])])
    limits = {"deepseek41": 4 * 64 + 1 + 7, "qwen-next": 4 * 64 + 1 + 7}
    monkeypatch.setattr(agentx_select, "CONTEXT_LIMITS", limits)
    assert picks(found, "full_prefix_reuse") == ("a", 1)
    limits |= {"qwen-next": 4 * 64 + 7}
    assert picks(found, "full_prefix_reuse") is None


SIZES = {"overlap_p50": 3, "overlap_p95": 9, "overlap_p100": 23}


def overlapping(ident: str, members: int) -> dict:
    return session(ident, [request([0, place + 1], place / 100, api_time=5.0) for place in range(members)])


def test_groups(trace):
    sessions = [overlapping("a", 3), overlapping("b", 3), overlapping("c", 9), overlapping("d", 23)]
    found = trace([overlapping(f"x{place}", 3) for place in range(16)] + sessions)
    assert overlap_sizes(found, True) == ("session_peak", SIZES)
    cases = by_name(select_cases(found, pinned=False)[0])
    group = cases["other_overlap_p50"]
    assert (len(group["requests"]), group["candidates"], first(group)) == (3, 18, ("x0", 0))
    assert group["group_shared_prefix_blocks"] == [[2, 1, 1], [1, 2, 1], [1, 1, 2]]
    assert first(cases["other_overlap_p100"]) == ("d", 0)


def test_published_outputs_choose_the_group(trace, monkeypatch):
    others = dict.fromkeys(("overlap_p95", "overlap_p100"), Known(("qwen-next",), "group"))
    monkeypatch.setattr(agentx_select, "CASES", {"overlap_p50": CASES["overlap_p50"]} | others)
    special = overlapping("special", 3)
    for item, out in zip(special["requests"], (126, 120, 108)):
        item["out"] = out
    entry = by_name(select_cases(trace([overlapping("a", 3), special]), pinned=True)[0])["overlap_p50"]
    assert (first(entry), entry["candidates"], entry["matched_published"]) == (("special", 0), 2, False)


@pytest.mark.parametrize("alone, statistic", [(0, "request_overlap"), (600, "request_overlap_ge2")])
def test_another_overlap_statistic_counts_only_if_it_gives_the_published_sizes(trace, alone, statistic):
    """One session, so one peak, 23; but bursts of 3, 9 and 23 requests that start together."""
    bursts = [3] * 100 + [9] * 20 + [23] + [1] * alone
    items = [
        request([100 * place + member], 2.0 * place)
        for place, members in enumerate(bursts)
        for member in range(members)
    ]
    found = trace([session("s", items)])
    assert overlap_sizes(found, True) == (statistic, SIZES)
    assert overlap_sizes(found, False) == ("session_peak", dict.fromkeys(agentx_select.OVERLAP_PERCENTS, 23))
    assert overlap_sizes(trace([session("s", items[3:300])]), True)[0] == "session_peak"


def test_entries_are_plain_json(real):
    entries, _, _ = select_cases(real, pinned=False)
    assert json.loads(json.dumps(entries)) == entries
