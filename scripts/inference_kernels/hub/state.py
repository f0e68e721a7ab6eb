"""Bookkeeping in results/hub/: damaged files are moved aside with a warning, and hashes are computed once."""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import json_line, parse_json, read_text, write_text
from inference_kernels.core.hashing import hash_files
from inference_kernels.core.layout import inside
from inference_kernels.hub.files import STATE_FOLDER

SHA256 = re.compile(r"[0-9a-f]{64}")
# Two writes within one tick of the file system's clock leave the same times, so the hash of a younger file is
# not kept, as in git's index: https://git-scm.com/docs/racy-git
YOUNG_NS = 2 * 10**9
Stat = tuple[int, int, int, int]


def quiet(message: str) -> None:
    """Drop a message."""


def read_state(path: Path, parse: Callable[[str], Any], empty: Any, tell: Callable[[str], None] = quiet) -> Any:
    """Parse a file of bookkeeping; `empty` if there is none, or if it is damaged: then it is moved aside.

    parse: raises SchemaError, ValueError, TypeError or KeyError for damage.
    """
    if not os.path.lexists(path):
        return empty
    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        return parse(read_text(path))
    except (SchemaError, ValueError, TypeError, KeyError) as error:
        found = error.found if isinstance(error, SchemaError) else str(error)
        tell(f"warning {path}: bookkeeping is damaged ({found}); moved to {move_aside(path).name}, starting afresh")
        return empty


def move_aside(path: Path) -> Path:
    """Rename a damaged file to the first free name `<name>.damaged-N`; return it."""
    number = 1
    while os.path.lexists(target := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    os.replace(path, target)
    return target


def is_sha256(value: Any) -> bool:
    """Tell whether a value read from JSON is a hex digest."""
    return isinstance(value, str) and bool(SHA256.fullmatch(value))


class HashCache:
    """SHA-256 by path, kept in results/hub/hashes.json while inode, size, mtime and ctime stay the same.

    ignore: start empty. keep: write what was computed (a dry run writes nothing).
    """

    def __init__(self, root: Path, tell: Callable[[str], None] = quiet, ignore: bool = False, keep: bool = True):
        self.root, self.keep = root, keep
        self.path = root / STATE_FOLDER / "hashes.json"
        self.held: dict[str, tuple[Stat, str]] = {} if ignore else self._read(tell)
        self.hashed = 0

    def _read(self, tell: Callable[[str], None]) -> dict[str, tuple[Stat, str]]:
        if self.keep:
            return read_state(self.path, _parse_hashes, {}, tell)
        try:
            return _parse_hashes(read_text(self.path))
        except (OSError, SchemaError, ValueError, TypeError, KeyError):
            return {}

    def learn(self, texts: Iterable[str], jobs: int) -> None:
        """Hash the files among `texts` whose hash is not known."""
        unknown = {inside(self.root, text, text): text for text in texts if self.get(text) is None}
        before = {path: stat_of(path) for path in unknown}
        try:
            for path, digest in hash_files(unknown, jobs):
                if isinstance(digest, OSError):
                    raise digest
                self.hashed += 1
                if stat_of(path) == before[path]:
                    self.held[unknown[path]] = (before[path], digest)
        finally:
            self._write()

    def get(self, text: str) -> str | None:
        """Return the hash of a file that is unchanged since it was computed, or None."""
        known = self.held.get(text)
        return known[1] if known and known[0] == stat_of(self.root / text) else None

    def _write(self) -> None:
        now = time.time_ns()
        kept = {text: [*stat, digest] for text, (stat, digest) in sorted(self.held.items()) if _old(stat, now)}
        if self.keep and self.hashed:
            write_text(self.path, json_line(kept) + "\n")


def stat_of(path: Path) -> Stat:
    """Return what changes when a file is written or replaced."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _old(stat: Stat, now: int) -> bool:
    return max(stat[2:]) < now - YOUNG_NS


def _parse_hashes(text: str) -> dict[str, tuple[Stat, str]]:
    held = {}
    for path, (ino, size, mtime, ctime, digest) in dict(parse_json(text, "hashes")).items():
        if not all(type(item) is int for item in (ino, size, mtime, ctime)) or not is_sha256(digest):
            raise ValueError(f"a wrong entry for {path}")
        held[path] = ((ino, size, mtime, ctime), digest)
    return held
