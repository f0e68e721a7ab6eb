"""The ledger of a repository: which objects the Hub has, by hash, so that no run sends one again."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from inference_kernels.hub.files import STATE_FOLDER


class Ledger:
    """Append-only JSONL beside the checkout, one line an object; a line cut by a kill is ignored."""

    def __init__(self, root: Path, repository: str):
        self.path = root / STATE_FOLDER / f"{repository.replace('/', '--')}.jsonl"
        self.hashes = set(_complete_lines(self.path)) if self.path.exists() else set()

    def add(self, hashes: Iterable[str]) -> None:
        """Note objects that were sent; on disk when this returns."""
        new = sorted(set(hashes) - self.hashes)
        if not new:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as stream:
            if stream.tell() and not _ends_with_newline(self.path):
                stream.write(b"\n")
            stream.write("".join(json.dumps({"sha256": value}) + "\n" for value in new).encode())
            stream.flush()
            os.fsync(stream.fileno())
        self.hashes.update(new)


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read() == b"\n"


def _complete_lines(path: Path) -> list[str]:
    found = []
    for line in path.read_text().split("\n"):
        try:
            found.append(json.loads(line)["sha256"])
        except (ValueError, KeyError, TypeError):
            continue  # cut by a kill: the object is offered to the Hub again, which knows it
    return found
