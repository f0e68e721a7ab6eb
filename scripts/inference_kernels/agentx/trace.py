"""Read Weka traces, one anonymised coding-agent session per JSON object. Standard library only.

Format: `id`, `models`, `block_size`, `hash_id_scope`, `requests`. A request has `type` "n" or "s", `t`,
`model`, `in`, `out`, `hash_ids` and usually `api_time`; a `subagent` marker holds nested requests. Sessions
are read one at a time: memory holds one session's text and a few hundred bytes per request.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.agentx.blocks import BlockLists, Runs, TraceError
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import parse_json

BLOCK_SIZE = 64
# Start of a block list. Within a JSON string the second quote would be escaped, so this matches keys only.
BLOCK_LIST = re.compile(rb'"hash_ids"\s*:\s*\[')
NESTED_SLACK_S = 1e-6
REMEDY = "download the trace again, or name the file that is meant"

Row = tuple[dict[str, Any], int, int, float]  # request, outer, inner, the time that its `t` counts from


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of the trace. Times in seconds from the start of its session.

    ordinal: number in the whole trace; line: of its session; index: in its session, where nested requests take
    the place of their marker; outer, inner: indices in the file (inner -1: not nested). shared: leading blocks
    that an earlier request of the session had; predecessor: index of the latest-started one that has them.
    """

    ordinal: int
    session: str
    line: int
    index: int
    outer: int
    inner: int
    model: str
    input_tokens: int
    output_tokens: int
    start: float
    end: float
    runs: Runs
    blocks: int
    shared: int
    predecessor: int | None

    @property
    def role(self) -> str:
        """Return main, or subagent for a nested request."""
        return "main" if self.inner < 0 else "subagent"

    @property
    def reuse(self) -> str:
        """Return cold if no block was seen before, full if every block was, else partial."""
        return "cold" if self.shared == 0 else "full" if self.shared == self.blocks else "partial"


@dataclass(frozen=True, slots=True)
class Session:
    """One session. markers: subagent groups; keys: of the JSON object; early_nested: a time before its marker's."""

    ident: str
    line: int
    markers: int
    keys: frozenset[str]
    early_nested: bool
    requests: tuple[TraceRequest, ...]


def read_sessions(path: Path, relative: bool) -> Iterator[Session]:
    """Read sessions in file order. relative: nested times count from their marker. TraceError."""
    seen: dict[str, str] = {}
    ordinal = 0
    for line, text, where in documents(path):
        session = _session(text, line, where, relative, ordinal)
        if session.ident in seen:
            raise _refusal("unique session ids", f"{session.ident!r} of {seen[session.ident]} again", where)
        seen[session.ident] = where
        ordinal += len(session.requests)
        yield session
    if not seen:
        raise _refusal("at least one session", "none", str(path))


def documents(path: Path) -> Iterator[tuple[int, bytes, str]]:
    """Yield (line from 0, text, place) per session: a whole `.json` file, or each line of any other file."""
    if path.suffix == ".json":
        yield 0, path.read_bytes(), str(path)
        return
    with open(path, "rb", buffering=2**20) as stream:
        for line, text in enumerate(stream):
            if not text.isspace():
                yield line, text, f"{path}:{line + 1}"


def nested_times_are_relative(path: Path) -> bool:
    """Tell whether any nested request seems to start before its marker: such times count from the marker."""
    return any(_early_nested(_outline(text, where)[0]["requests"], where) for _, text, where in documents(path))


def _early_nested(items: list[dict[str, Any]], where: str) -> bool:
    return any(
        _number(nested, "t", where) + NESTED_SLACK_S < item["t"]
        for item in items
        if item["type"] == "subagent"
        for nested in item["requests"]
    )


def _session(text: bytes, line: int, where: str, relative: bool, ordinal: int) -> Session:
    outline, places = _outline(text, where)
    rows, markers = _flatten(outline["requests"], relative)
    if [item.get("hash_ids") for item, *_ in rows] != list(range(len(places))):
        raise _refusal(
            "one list hash_ids in every request, and nowhere else", f"{len(rows)} requests, {len(places)} lists", where
        )
    lengths = [_lengths(item, f"{where}, request {index}") for index, (item, *_) in enumerate(rows)]
    times = [_times(item, base, f"{where}, request {index}") for index, (item, _, _, base) in enumerate(rows)]
    lists, blocks = BlockLists(text, places, where), {}
    for index in sorted(range(len(rows)), key=lambda index: (times[index][0], index)):
        blocks[index] = lists.add(index)
    ident, early = outline["id"], _early_nested(outline["requests"], where)
    requests = tuple(
        TraceRequest(
            ordinal + index,
            ident,
            line,
            index,
            outer,
            inner,
            item["model"],
            *lengths[index],
            *times[index],
            *blocks[index],
        )
        for index, (item, outer, inner, _) in enumerate(rows)
    )
    return Session(ident, line, markers, frozenset(outline), early, requests)


def _outline(text: bytes, where: str) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the session with a number in place of each block list, and where the lists are."""
    pieces, places, rest = [], [], 0
    while match := BLOCK_LIST.search(text, rest):
        end = text.find(b"]", match.end())
        if end < 0:
            raise _refusal("a complete JSON object", "the end of the text inside a list of blocks", where)
        pieces += [text[rest : match.end() - 1], b"%d" % len(places)]
        places.append((match.end(), end))
        rest = end + 1
    pieces.append(text[rest:])
    try:
        outline = parse_json(b"".join(pieces).decode(), where)
    except (SchemaError, UnicodeDecodeError) as error:
        found = f"{getattr(error, 'found', error)} (counted without the block lists)"
        raise _refusal("a complete JSON object", found, where) from error
    _check_session(outline, where)
    return outline, places


def _check_session(outline: Any, where: str) -> None:
    if not isinstance(outline, dict):
        raise _refusal("a session: a JSON object", type(outline).__name__, where)
    for key, right, expected in (
        ("id", lambda value: isinstance(value, str) and value, "a name"),
        ("block_size", lambda value: value == BLOCK_SIZE, str(BLOCK_SIZE)),
        ("hash_id_scope", lambda value: value == "local", "'local' (ids that count within a session)"),
        ("requests", lambda value: isinstance(value, list) and value, "a list that is not empty"),
    ):
        if key not in outline or not right(outline[key]):
            raise _wrong(outline, key, expected, where)
    _check_items(outline["requests"], where)


def _check_items(items: list[Any], where: str) -> None:
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in ("n", "s", "subagent"):
            raise _refusal("requests of type n, s or subagent", repr(kind), where)
        if kind == "subagent":
            if not isinstance(item.get("requests"), list):
                raise _wrong(item, "requests", "a list", where)
            _number(item, "t", where)
            _check_items(item["requests"], where)


def _flatten(items: list[dict[str, Any]], relative: bool) -> tuple[list[Row], int]:
    """Return the requests in flat order, and the number of markers."""
    rows, markers = [], 0
    for outer, item in enumerate(items):
        found = list(_requests(item, 0.0, relative))
        nested = item["type"] == "subagent"
        rows += [(request, outer, inner if nested else -1, base) for inner, (request, base) in enumerate(found)]
        markers += _markers(item)
    return rows, markers


def _requests(item: dict[str, Any], base: float, relative: bool) -> Iterator[tuple[dict[str, Any], float]]:
    if item["type"] != "subagent":
        yield item, base
        return
    for nested in item["requests"]:
        yield from _requests(nested, base + item["t"] if relative else 0.0, relative)


def _markers(item: dict[str, Any]) -> int:
    return 1 + sum(map(_markers, item["requests"])) if item["type"] == "subagent" else 0


def _lengths(item: dict[str, Any], where: str) -> tuple[int, int]:
    for key, least in (("in", 1), ("out", 0)):
        if type(item.get(key)) is not int or item[key] < least:
            raise _wrong(item, key, f"a whole number >= {least}", where)
    if not isinstance(item.get("model"), str):
        raise _wrong(item, "model", "a name", where)
    return item["in"], item["out"]


def _times(item: dict[str, Any], base: float, where: str) -> tuple[float, float]:
    """Return start and end in seconds. A request without a usable `api_time` ends when it starts."""
    start = base + _number(item, "t", where)
    duration = item.get("api_time")
    if duration is None or not math.isfinite(_number(item, "api_time", where)):
        duration = 0.0
    return start, start + max(duration, 0.0)


def _number(item: dict[str, Any], key: str, where: str) -> float:
    value = item.get(key)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _wrong(item, key, "a number", where)
    return value


def _wrong(item: dict[str, Any], key: str, expected: str, where: str) -> TraceError:
    found = f"{key} = {item[key]!r:.60}" if key in item else f"no key {key}"
    return _refusal(f"{key}: {expected}", found, where)


def _refusal(expected: str, found: str, where: str) -> TraceError:
    return TraceError(expected=expected, found=found, where=where, remedy=REMEDY)
