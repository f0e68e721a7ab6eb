"""Reading Weka traces: figures of real sessions, a slow reading as oracle, and everything that is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.agentx_toys import REAL, WEKA, marker, request, session, slow_reading, write_lines
from inference_kernels.agentx.blocks import TraceError, common_prefix, runs_of
from inference_kernels.agentx.population import peak_group
from inference_kernels.agentx.trace import nested_times_are_relative, read_sessions

pytestmark = pytest.mark.no_torch


# Requests, markers, least and most input, most output, most blocks, cold / partial / full, most runs,
# requests in flight at the first peak.
FIGURES = {
    "trace_0026": (3, 0, 15_291, 20_068, 2_905, 313, (1, 2, 0), 1, {0}),
    "trace_0277": (53, 4, 11_651, 92_614, 4_797, 1_447, (2, 51, 0), 2, {11, 20, 34}),
    "trace_0549_last_three": (3, 0, 136_852, 137_529, 616, 2_148, (1, 1, 1), 1, {0}),
    "neon_trace_0080": (21, 0, 8, 37_402, 513, 457, (10, 11, 0), 8, {10, 11, 12}),
}


@pytest.fixture
def real(tmp_path):
    """real(name): the file of a real session; the one of another scope with its scope rewritten."""

    def path(name: str) -> Path:
        if name in REAL:
            return WEKA / f"{name}.json"
        text = (WEKA / f"{name}.json").read_text()
        (tmp_path / "local.json").write_text(text.replace('"global"', '"local"'))
        return tmp_path / "local.json"

    return path


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_real_sessions(real, name):
    path = real(name)
    (found,) = read_sessions(path, nested_times_are_relative(path))
    requests = found.requests
    inputs = [r.input_tokens for r in requests]
    reuse = tuple(sum(r.reuse == kind for r in requests) for kind in ("cold", "partial", "full"))
    assert FIGURES[name] == (
        len(requests),
        found.markers,
        min(inputs),
        max(inputs),
        max(r.output_tokens for r in requests),
        max(r.blocks for r in requests),
        reuse,
        max(len(r.runs) for r in requests),
        {r.index for r in peak_group(found)},
    )


@pytest.mark.parametrize("name", FIGURES)
def test_real_sessions_agree_with_the_slow_reading(real, name):
    path = real(name)
    relative = REAL.get(name, False)
    assert nested_times_are_relative(path) is relative
    (found,) = read_sessions(path, relative)
    expected = slow_reading(json.loads(path.read_bytes()), relative)
    assert [{key: getattr(r, key) for key in expected[0]} for r in found.requests] == expected


@st.composite
def sessions(draw):
    """Requests that branch off one another anywhere, start in any order and are written in any style."""
    items, lists, fresh = [], [[]], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from(lists))
        blocks = parent[: draw(st.integers(0, len(parent)))]
        for _ in range(draw(st.integers(0, 3))):
            fresh += draw(st.sampled_from([1, 1, 2, 997]))
            blocks = [*blocks, fresh]
        lists.append(blocks)
        times = st.integers(0, 6).map(float)
        item = request(blocks, draw(times), api_time=draw(st.none() | st.just(-1.0) | times))
        items.append(item | {"in": 64 * len(blocks) + 1})
    nested = draw(st.integers(0, len(items) - 1))
    items[nested:] = [marker(3.0, items[nested:])] if nested else items
    return session("s", items)


@given(
    content=sessions(),
    relative=st.booleans(),
    separators=st.sampled_from([(",", ":"), (" , ", ": ")]),
    indent=st.sampled_from([None, 1]),
)
@settings(deadline=None, max_examples=200)
def test_any_chained_session_agrees_with_the_slow_reading(tmp_path_factory, content, relative, separators, indent):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(content, separators=separators, indent=indent))
    (found,) = read_sessions(path, relative)
    expected = slow_reading(content, relative)
    assert [{key: getattr(r, key) for key in expected[0]} for r in found.requests] == expected


def test_lists_that_are_written_differently_share_their_blocks(tmp_path):
    text = json.dumps(session("s", [request([1, 2, 3]), request([1, 2, 3, 4], 1.0)]))
    path = tmp_path / "spaces.json"
    path.write_text(text.replace("[1, 2, 3, 4]", "[ 1,2 ,\n3,4 ]"))
    (found,) = read_sessions(path, False)
    assert [(r.shared, r.predecessor) for r in found.requests] == [(0, None), (3, 0)]


def test_a_text_that_quotes_a_block_list_is_no_block_list(tmp_path):
    content = session("s", [request([1, 2]) | {"model": '"hash_ids": [1, 2]'}])
    (found,) = read_sessions(write_lines(tmp_path / "quoted.jsonl", [content]), False)
    assert found.requests[0].model == '"hash_ids": [1, 2]' and found.requests[0].blocks == 2


def test_deeper_nesting_keeps_the_flat_order(tmp_path):
    deep = marker(1.0, [request([1, 2], 0.5), marker(2.0, [request([1, 2, 3], 0.25)])])
    path = write_lines(tmp_path / "deep.jsonl", [session("s", [request([1]), deep, request([9], 7.0)])])
    (found,) = read_sessions(path, nested_times_are_relative(path))
    assert found.markers == 2
    assert [(r.outer, r.inner, r.start) for r in found.requests] == [
        (0, -1, 0.0),
        (1, 0, 1.5),
        (1, 1, 3.25),
        (2, -1, 7.0),
    ]


def test_numbers_run_over_sessions_and_blank_lines_count_as_lines(tmp_path):
    path = write_lines(
        tmp_path / "two.jsonl", [session("a", [request([1]), request([2])]), session("b", [request([1])])]
    )
    path.write_text(path.read_text().replace("\n", "\n\n", 1))
    found = list(read_sessions(path, False))
    assert [(r.ordinal, r.line, r.index, r.shared) for item in found for r in item.requests] == [
        (0, 0, 0, 0),
        (1, 0, 1, 0),
        (2, 2, 0, 0),
    ]


def test_runs():
    assert runs_of([]) == ()
    assert runs_of([5, 6, 7, 3, 8, 9]) == ((5, 3), (3, 1), (8, 2))
    assert common_prefix(((1, 5), (9, 2)), ((1, 5), (9, 4))) == 7
    assert common_prefix(((1, 5), (9, 2)), ((1, 3), (9, 2))) == 3
    assert common_prefix(((1, 2),), ((2, 2),)) == 0


GOOD = [request([1, 2, 3]), request([1, 2, 4], 1.0)]


def changed(place: int, **values) -> list[dict]:
    return [item | values if number == place else item for number, item in enumerate(GOOD)]


def without(key: str) -> list[dict]:
    return [{name: value for name, value in item.items() if name != key} for item in GOOD]


REFUSED = {
    "negative input": (session("s", changed(1, **{"in": -64})), ("request 1", "a whole number >= 1", "-64")),
    "no input": (session("s", without("in")), ("no key in",)),
    "fractional input": (session("s", changed(0, **{"in": 64.0})), ("in = 64.0",)),
    "negative output": (session("s", changed(0, out=-1)), ("request 0", "out = -1")),
    "boolean output": (session("s", changed(0, out=True)), ("out = True",)),
    "no time": (session("s", without("t")), ("no key t",)),
    "time in words": (session("s", changed(0, t="now")), ("t = 'now'",)),
    "duration in words": (session("s", changed(0, api_time="1")), ("api_time = '1'",)),
    "no model": (session("s", without("model")), ("no key model",)),
    "no blocks": (session("s", without("hash_ids")), ("2 requests, 0 lists",)),
    "blocks elsewhere": (session("s", GOOD, totals={"hash_ids": [1]}), ("2 requests, 3 lists",)),
    "unknown type": (session("s", changed(0, type="x")), ("type n, s or subagent", "'x'")),
    "marker without requests": (session("s", [{"type": "subagent", "t": 0.0}]), ("no key requests",)),
    "no requests": (session("s", []), ("requests: a list that is not empty",)),
    "no id": (session("", GOOD), ("id: a name",)),
    "another block size": (session("s", GOOD) | {"block_size": 16}, ("block_size: 64", "16")),
    "another scope": (session("s", GOOD) | {"hash_id_scope": "global"}, ("hash_id_scope = 'global'",)),
    "a list": ([1, 2], ("a session", "list")),
    "negative block": (session("s", [request([1, -2])]), ("request 0", "whole numbers", "-2")),
    "fractional block": (session("s", [request([1, 2.5])]), ("whole numbers", "2.5")),
    "huge block": (session("s", [request([2**26])]), ("at most 67,108,863",)),
    "huger block": (session("s", [request([1]), request([1, 10**30])]), ("at most 67,108,863",)),
    "block twice": (session("s", [request([1, 2, 1])]), ("chained", "block 1 in a second place")),
    "block moved": (session("s", [request([1, 2, 3]), request([5, 3], 1.0)]), ("request 1", "block 3")),
    "block behind others": (session("s", [request([1, 2, 3]), request([9, 2, 3], 1.0)]), ("chained",)),
    "block cut short": (session("s", [request([1, 23, 2]), request([1, 2], 1.0)]), ("request 1", "chained")),
    "block left out": (session("s", [request([1, 2, 3]), request([1, 3], 1.0)]), ("chained",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_sessions(tmp_path, name):
    content, fragments = REFUSED[name]
    with pytest.raises(TraceError) as refusal:
        list(read_sessions(write_lines(tmp_path / "bad.jsonl", [content]), False))
    for fragment in ("bad.jsonl:1", *fragments):
        assert fragment in refusal.value.line()


TEXT = json.dumps(session("s", GOOD))
DAMAGED = {
    "cut in a list": (TEXT[: TEXT.index("[1, 2, 4") + 5], "inside a list of blocks"),
    "cut behind a list": (TEXT[:-20], "a complete JSON object"),
    "key twice": (TEXT.replace('"out"', '"in"', 1), "repeated key 'in'"),
    "comma missing": (TEXT.replace("[1, 2, 4", "[1 2, 4"), "request 1"),
    "comma too many": (TEXT.replace("[1, 2, 3", "[1, 2, 3, "), "request 0"),
    "comma too many behind known blocks": (TEXT.replace("2, 4]", "2,]"), "request 1"),
    "empty place": (TEXT.replace("[1, 2, 4", "[1,, 2, 4"), "request 1"),
    "leading zero": (TEXT.replace("2, 4]", "2, 04]"), "request 1"),
    "list in a list": (TEXT.replace("[1, 2, 4]", "[[1, 2, 4]]"), "a complete JSON object"),
    "not UTF-8": (TEXT.replace('"m"', '"\xff"', 1), "utf-8"),
    "not a number": (TEXT.replace('"t": 0.0', '"t": NaN'), "NaN"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_text_is_refused(tmp_path, name):
    text, fragment = DAMAGED[name]
    path = tmp_path / "damaged.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError, match="damaged.json") as refusal:
        list(read_sessions(path, False))
    assert fragment in refusal.value.line() and "\n" not in refusal.value.line()


def test_session_ids_are_unique_and_a_trace_has_sessions(tmp_path):
    path = write_lines(tmp_path / "twice.jsonl", [session("s", GOOD), session("s", GOOD)])
    with pytest.raises(TraceError, match=r"twice.jsonl:2.*unique session ids.*twice.jsonl:1"):
        list(read_sessions(path, False))
    with pytest.raises(TraceError, match="at least one session"):
        list(read_sessions(write_lines(tmp_path / "empty.jsonl", []), False))
