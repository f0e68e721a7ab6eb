"""Atomic writing of files, and strict reading and canonical writing of JSON."""

import errno
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from inference_kernels.core.errors import SchemaError

# Prefix of temporary files, by which those of a killed writer are recognised.
LEFTOVER = ".tmp-"
# Bounds of what is read: far above any file of a dataset, and small enough for the memory of any machine. Integers
# longer than a hash and nesting deeper than any schema are damage, on which later steps would fail without a place.
TEXT_LIMIT, DIGIT_LIMIT, DEPTH_LIMIT = 2**28, 100, 64
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; on success fsync it and rename it to `path`.

    An exception or a kill at any moment leaves `path` as it was; a kill also leaves the temporary file
    (`remove_leftovers`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=LEFTOVER, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = error.filename or str(path)  # a failed write does not say where
        raise
    sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut: POSIX asks for an fsync of the directory."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_writer(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with a final newline; keys keep their order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json_line(row) + "\n" for row in rows))


def json_line(value: Any) -> str:
    """Format one JSONL line: compact, keys in their order; ValueError for NaN and infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def canonical_json(value: Any) -> str:
    """Format equal values as equal text: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def remove_leftovers(folder: Path) -> int:
    """Delete the temporary files that killed writers left below `folder`; return how many."""
    leftovers = [path for path in folder.rglob(f"{LEFTOVER}*") if path.is_file()]
    for path in leftovers:
        path.unlink()
    return len(leftovers)


def parse_json(text: str, where: str) -> Any:
    """Parse JSON strictly: SchemaError for what has two meanings, no finite value, or no bounded size.

    Refused are duplicate keys, NaN, infinities (also 1e999), integers of more than 100 digits, lone surrogates, and
    nesting deeper than 64.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
        _require_shallow(value)
        if SURROGATE.search(text):
            _require_characters(value)
        return value
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            expected="valid JSON",
            found=str(error),
            where=where,
            remedy="restore the file from version control or write it again",
        ) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated = sorted({key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1})
        raise ValueError(f"repeated key {repeated[0]!r}")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the finite numbers")
    return value


def _bounded(text: str) -> int:
    if len(text) > DIGIT_LIMIT:
        raise ValueError(f"an integer of {len(text):,} digits")
    return int(text)


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [item for item in level if isinstance(item, (list, dict))]
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return
    if any(isinstance(item, (list, dict)) for item in level):
        raise ValueError(f"nesting deeper than {DEPTH_LIMIT}")


def _require_characters(value: Any) -> None:
    """Refuse halves of characters: they can be neither written nor hashed."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate \\u{ord(error.object[error.start]):04x} in a text") from error


def regular_size(path: Path) -> int:
    """Return a file's size; SchemaError unless it is a regular file: a pipe or device may have no end."""
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise SchemaError(
            expected="a file", found="nothing", where=str(path), remedy="check the path and the checkout"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or device"
        raise SchemaError(expected="a regular file", found=kind, where=str(path), remedy="name or restore the file")
    return found.st_size


def read_text(path: Path) -> str:
    """Read UTF-8 text; SchemaError if the file is absent, no regular file, too large or not UTF-8."""
    try:
        size = regular_size(path)
        if size > TEXT_LIMIT:
            raise SchemaError(
                expected=f"a text of at most {TEXT_LIMIT:,} bytes",
                found=f"{size:,}",
                where=str(path),
                remedy="restore the file from version control",
            )
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise SchemaError(
            expected="UTF-8 text", found=str(error), where=str(path), remedy="restore the file from version control"
        ) from error


def lines(text: str) -> list[str]:
    """Split a JSONL text at newlines only: `splitlines` would also cut at U+2028 inside a prompt."""
    return text.removesuffix("\n").split("\n") if text else []


def read_json(path: Path) -> Any:
    return parse_json(read_text(path), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; SchemaError if the file holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SchemaError(
            expected="a JSON object",
            found=type(value).__name__,
            where=str(path),
            remedy="restore the file from version control",
        )
    return value


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object); SchemaError for a blank line, as in the native loader."""
    for number, line in enumerate(lines(read_text(path)), 1):
        value = parse_json(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise SchemaError(
                expected="one JSON object per line",
                found=type(value).__name__,
                where=f"{path}:{number}",
                remedy="remove or repair the line",
            )
        yield number, value
