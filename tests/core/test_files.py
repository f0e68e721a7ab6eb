"""Atomic writing, and JSON with a single meaning."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.core import files
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import (
    LEFTOVER,
    atomic_writer,
    canonical_json,
    json_line,
    lines,
    parse_json,
    read_json,
    read_jsonl,
    read_object,
    read_text,
    remove_leftovers,
    write_bytes,
    write_json,
    write_jsonl,
)

pytestmark = pytest.mark.no_torch


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_new_file_appears_whole_with_ordinary_permissions(tmp_path):
    write_bytes(tmp_path / "a" / "b", b"content")
    assert (tmp_path / "a" / "b").read_bytes() == b"content"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path / "a") == ["b"]


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_failure_at_any_moment_leaves_the_old_file(tmp_path, monkeypatch, moment):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment != "write":
        monkeypatch.setattr(files.os, moment, fail)
    with pytest.raises(OSError) as caught, atomic_writer(path) as stream:
        stream.write(b"new")
        if moment == "write":
            fail()
    assert caught.value.filename == str(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_an_interrupt_leaves_the_old_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_writer(tmp_path / "file"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    for name in (f"{LEFTOVER}1", f"deep/{LEFTOVER}2", "kept", "deep/kept.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / f"{LEFTOVER}folder").mkdir()
    assert remove_leftovers(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == [f"{LEFTOVER}folder", "deep", "kept", "kept.tmp"]


@pytest.mark.parametrize(
    "text,reason",
    [
        ('{"a": 1, "a": 2}', "repeated key 'a'"),
        ('{"x": {"b": 1, "c": 2, "b": 1}}', "repeated key 'b'"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("{", "Expecting"),
        ("", "Expecting value"),
        ("[" * 100_000, "recursion"),
        ("1 2", "Extra data"),
        ("[1e999]", "1e999 is beyond the finite numbers"),
        ('{"atol": -1e400}', "-1e400 is beyond the finite numbers"),
        ("1" + "0" * 400 + ".0", "is beyond the finite numbers"),
        ("1" * 4200, "an integer of 4,200 digits"),
        ("[" * 65 + "]" * 65, "nesting deeper than 64"),
        ('{"a":' * 900 + "1" + "}" * 900, "nesting deeper than 64"),
        (r'{"prompt": "\ud800"}', r"a lone surrogate \ud800"),
        (r'{"\uDFFF": 1}', r"a lone surrogate \udfff"),
        ('"\udc80"', r"a lone surrogate \udc80"),
    ],
)
def test_doubtful_json_is_refused_with_the_place(text, reason):
    with pytest.raises(SchemaError, match="^file:7: expected valid JSON; found ") as caught:
        parse_json(text, "file:7")
    assert reason in caught.value.found


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_canonical_json_is_one_sequence_for_equal_values(value):
    text = canonical_json(value)
    assert parse_json(text, "here") == value and text.isascii() and canonical_json(json.loads(text)) == text


def test_canonical_json_ignores_the_order_of_keys():
    assert canonical_json({"b": 1, "a": [1, 2]}) == canonical_json({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'


@pytest.mark.parametrize("write", [json_line, canonical_json])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_json_is_not_written(write, value):
    with pytest.raises(ValueError):
        write({"x": value})


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4))
@settings(max_examples=100, deadline=None)
def test_jsonl_round_trip(tmp_path_factory, rows):
    """Also prompts with U+2028, U+0085 and the like, at which str.splitlines would split a line."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_jsonl(path, rows)
    assert list(read_jsonl(path)) == list(enumerate(rows, 1))


def test_only_a_newline_ends_a_line():
    assert lines("") == [] and lines("a") == lines("a\n") == ["a"] and lines("a\n\nb\n") == ["a", "", "b"]
    assert lines("a\u2028b\x85c\r\n") == ["a\u2028b\x85c\r"]


def test_broken_lines_and_files_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(SchemaError, match="rows.jsonl:2: expected one JSON object per line; found list"):
        list(read_jsonl(path))
    with pytest.raises(SchemaError, match="expected a file; found nothing"):
        read_text(tmp_path / "absent")
    path.write_bytes(b"\xff")
    with pytest.raises(SchemaError, match="expected UTF-8 text"):
        read_json(path)
    path.write_text("[]")
    with pytest.raises(SchemaError, match="expected a JSON object; found list"):
        read_object(path)


def test_what_is_just_inside_the_bounds_is_read():
    assert parse_json("[" * 64 + "]" * 64, "here") and parse_json("9" * 100, "here") == 10**100 - 1
    assert parse_json(r'"\ud83d\ude00"', "here") == "\U0001f600" and parse_json("1.7e308", "here") == 1.7e308


def test_lines_of_jsonl_are_read_as_strictly(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 1e999}\n')
    with pytest.raises(SchemaError, match="rows.jsonl:2: expected valid JSON; found 1e999 is beyond"):
        list(read_jsonl(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("read", [read_text, read_json, read_object, lambda path: list(read_jsonl(path))])
def test_only_regular_files_of_bounded_size_are_read(tmp_path, read):
    """A named pipe would be waited for, a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", files.TEXT_LIMIT + 1)
    for path, found in (
        (tmp_path / "pipe", "a pipe or device"),
        (Path("/dev/zero"), "a pipe or device"),
        (tmp_path, "a folder"),
        (tmp_path / "large", "268,435,457"),
    ):
        with pytest.raises(SchemaError) as caught:
            read(path)
        assert caught.value.found == found and caught.value.where == str(path)


def test_json_files_keep_the_order_and_end_with_a_newline(tmp_path):
    write_json(tmp_path / "x.json", {"b": "\u00e4", "a": None})
    assert (tmp_path / "x.json").read_text() == '{\n  "b": "\u00e4",\n  "a": null\n}\n'
