"""Git LFS pointers: recognise, read, and say the command that fetches the content. Standard library only.

Format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md (version line, `oid sha256:`, `size`).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import PointerError

FIRST_LINE = b"version https://git-lfs.github.com/spec/v1"
# The specification limits a pointer to less than 1024 bytes.
MAXIMUM_SIZE = 1024
BODY = re.compile(rb"^oid sha256:([0-9a-f]{64})\nsize (\d+)\n?$", re.MULTILINE)


@dataclass(frozen=True)
class Pointer:
    sha256: str
    size: int


def read_pointer(path: Path) -> Pointer | None:
    """The pointer in `path`, or None if the file is something else; PointerError if it is malformed."""
    if path.stat().st_size >= MAXIMUM_SIZE:
        return None
    content = path.read_bytes()
    if not content.startswith(FIRST_LINE):
        return None
    match = BODY.search(content)
    if not match:
        raise PointerError(
            expected="`oid sha256:<64 hex digits>` and `size <bytes>`",
            found="a broken pointer",
            where=str(path),
            remedy="restore it: git checkout -- <path>",
        )
    return Pointer(match[1].decode(), int(match[2]))


def pull_command(definitions: set[str]) -> str:
    """The command that fetches the tensors of these definitions."""
    include = ",".join(f"blob/workloads/{name}/**" for name in sorted(definitions))
    return f"git lfs pull --include '{include}'"
