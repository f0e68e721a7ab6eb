"""Where files lie: the three forms of a blob path, paths that cannot leave the root, Git LFS pointers.

blob/workloads/<name>/<sha256>.safetensors   Git LFS
blob/starter/<name>/<sha256>.safetensors     plain git, small
blob/generated/<name>/<sha256>.safetensors   git-ignored, rewritten by scripts/materialize_seeded.py

Standard library only.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from inference_kernels.core.errors import PathError, PointerError
from inference_kernels.core.types import Definition

REPOSITORY = Path(__file__).resolve().parents[3]
STORES = ("workloads", "starter", "generated")
TENSOR_KEY = "tensor"
STARTER_FILE_LIMIT = 8 * 2**20
STARTER_TOTAL_LIMIT = 56 * 2**20
# The Hub refuses folders with more entries; the warning comes well before.
FOLDER_ENTRY_LIMIT, FOLDER_ENTRY_WARNING = 10_000, 8_000
HUB_FILE_LIMIT = 50 * 10**9

NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
BLOB = re.compile(rf"blob/({'|'.join(STORES)})/({NAME.pattern})/([0-9a-f]{{64}})\.safetensors")
CANONICAL = "blob/{workloads|starter|generated}/<definition>/<sha256>.safetensors"

# A Git LFS pointer (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md) is shorter than 1024 bytes.
POINTER_LIMIT = 1024
POINTER_FIRST_LINE = b"version https://git-lfs.github.com/spec/v1"
POINTER_BODY = re.compile(rb"^oid sha256:([0-9a-f]{64})\nsize (\d{1,18})\n?$", re.MULTILINE)


@dataclass(frozen=True)
class BlobPath:
    """A parsed blob path; `str()` gives back its one canonical spelling."""

    store: str
    definition: str
    sha256: str

    def __str__(self) -> str:
        return f"blob/{self.store}/{self.definition}/{self.sha256}.safetensors"

    @classmethod
    def parse(cls, text: str, where: str) -> "BlobPath":
        """Parse `text`; PathError names the rule that it breaks."""
        match = BLOB.fullmatch(text)
        if match:
            return cls(*match.groups())
        raise PathError(
            expected=CANONICAL,
            found=f"{text!r} ({_fault(text)})",
            where=where,
            remedy="write the path in its canonical form",
        )


def _fault(text: str) -> str:
    parts = text.split("/")
    if "\\" in text:
        return "backslash"
    if text.startswith("/") or re.match(r"[A-Za-z]:", text):
        return "absolute path"
    if ".." in parts:
        return "parent folder"
    if "." in parts or "" in parts:
        return "redundant path part"
    return "not a canonical blob path"


def inside(root: Path, relative: str, where: str) -> Path:
    """Join `root` and `relative`; PathError if a symbolic link on the way leads out of the root."""
    path = root / relative
    real_root = os.path.realpath(root)
    real = os.path.realpath(path)
    if real != real_root and not real.startswith(real_root + os.sep):
        raise PathError(
            expected=f"a path inside {root}",
            found=f"{relative} -> {real}",
            where=where,
            remedy="replace the symbolic link by the file",
        )
    return path


def blob_path(root: Path, text: str, definition: str, where: str) -> Path:
    """Resolve a blob path below `root`; PathError unless it is canonical and belongs to `definition`."""
    blob = BlobPath.parse(text, where)
    if blob.definition != definition:
        raise PathError(
            expected=f"a blob of {definition}",
            found=f"one of {blob.definition}",
            where=where,
            remedy="import the tensor under its own definition",
        )
    return inside(root, text, where)


def workload_file(root: Path, definition: Definition) -> Path:
    """Name the JSONL file that holds the definition's workloads."""
    return root / "workloads" / definition["op_type"] / f"{definition['name']}.jsonl"


def blob_files(root: Path) -> list[Path]:
    """List every file below the three stores, sorted; symbolic links and leftovers included."""
    found = []
    for store in STORES:
        for folder, _, names in os.walk(root / "blob" / store):
            found += [Path(folder, name) for name in names]
    return sorted(found)


@dataclass(frozen=True)
class Pointer:
    """A Git LFS pointer: the digest and the size in bytes of the file it stands for."""

    sha256: str
    size: int


def read_pointer(path: Path) -> Pointer | None:
    """Read the pointer in `path`; None if the file is no pointer, PointerError if it is a malformed one."""
    found = path.stat()
    if found.st_size >= POINTER_LIMIT or not stat.S_ISREG(found.st_mode):
        return None
    content = path.read_bytes()
    if not content.startswith(POINTER_FIRST_LINE):
        return None
    match = POINTER_BODY.search(content)
    if not match:
        raise PointerError(
            expected="`oid sha256:<64 hex digits>` and `size <bytes>`",
            found="a broken pointer",
            where=str(path),
            remedy="restore it: git checkout -- <path>",
        )
    return Pointer(match[1].decode(), int(match[2]))


def pull_command(definitions: set[str]) -> str:
    """Write the command that fetches the tensors of these definitions."""
    include = ",".join(f"blob/workloads/{name}/**" for name in sorted(definitions))
    return f"git lfs pull --include '{include}'"
