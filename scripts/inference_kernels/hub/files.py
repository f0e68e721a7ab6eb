"""What of a checkout belongs on the Hub, in which order, and the Hub's limits."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from inference_kernels.core.errors import DatasetError, PointerError, SchemaError, TensorFileError
from inference_kernels.core.files import LEFTOVER
from inference_kernels.core.findings import Findings
from inference_kernels.core.hashing import hash_files, sha256_file
from inference_kernels.core.layout import (
    FOLDER_ENTRY_LIMIT,
    FOLDER_ENTRY_WARNING,
    HUB_FILE_LIMIT,
    BlobPath,
    Pointer,
    inside,
    read_pointer,
)
from inference_kernels.hub.client import Outgoing, RemoteFile, git_sha1

# Nothing else leaves the machine. `.gitattributes` is not here: the Hub keeps its own, which says what it
# stores as large objects; `blob/generated` is rewritten from recipes.
PUBLISHED = (
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "agentx_shapes.json",
    "benchmarks",
    "blob/starter",
    "blob/workloads",
    "captures.jsonl",
    "definitions",
    "docs",
    "licenses",
    "prompts",
    "pyproject.toml",
    "rearrangements.json",
    "requirements",
    "results/summaries",
    "retired",
    "scripts",
    "solutions",
    "tasks",
    "tests",
    "workloads",
)
CARD = "README.md"
STATE_FOLDER = "results/hub"
CACHES = ("__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache")


@dataclass(frozen=True)
class LocalFile:
    """A file to publish: its path in the repository and its bytes, or the file that holds them."""

    path: str
    source: Path | bytes

    @cached_property
    def pointer(self) -> Pointer | None:
        """The Git LFS pointer that stands in for a tensor which is not here."""
        is_tensor = isinstance(self.source, Path) and self.path.startswith("blob/")
        return read_pointer(self.source) if is_tensor else None

    @cached_property
    def size(self) -> int:
        """Bytes of the content; of a pointer, those of the content it names."""
        if self.pointer:
            return self.pointer.size
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """Hash of the content. A tensor's is its name; `damaged` finds the one that is not."""
        if self.path.startswith("blob/"):
            return BlobPath.parse(self.path, self.path).sha256
        if isinstance(self.source, Path):
            return sha256_file(self.source)
        return hashlib.sha256(self.source).hexdigest()

    def same_as(self, remote: RemoteFile | None) -> bool:
        """True if the Hub holds this content at this path; plain git files are compared by blob id."""
        if remote is None or remote.size != self.size:
            return False
        if remote.sha256:
            return remote.sha256 == self.sha256
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return git_sha1(content) == remote.git_sha1

    def outgoing(self) -> Outgoing:
        return Outgoing(self.path, self.source, self.size, self.sha256)


def is_published(path: str) -> bool:
    """Whether `path` of a repository belongs to the dataset (and not, say, to the Hub itself)."""
    return path == CARD or any(path == top or path.startswith(f"{top}/") for top in PUBLISHED)


def stage(path: str) -> int:
    """Order of sending and of fetching: a reader never sees a record before what it names.

    Tensors, then code and pages, definitions and other JSON, workloads, and capture records at the end.
    """
    if path.startswith("blob/"):
        return 0
    if not path.endswith((".json", ".jsonl")):
        return 1
    return 4 if path == "captures.jsonl" else 3 if path.startswith("workloads/") else 2


def local_files(root: Path) -> list[LocalFile]:
    """Every file below `root` that is published, in the order of sending; the card is not among them.

    PathError for a symbolic link that leaves the root, SchemaError for one that stays inside.
    """
    found = []
    for top in PUBLISHED:
        start = root / top
        if start.is_file():
            found.append(top)
        for folder, folders, names in os.walk(start):
            folders[:] = [name for name in folders if name not in CACHES]
            found += [
                Path(folder, name).relative_to(root).as_posix()
                for name in names
                if not name.startswith(LEFTOVER) and not name.endswith(".pyc")
            ]
    files = []
    for text in sorted(found, key=lambda text: (stage(text), text)):
        path = inside(root, text, text)
        if path.is_symlink():
            raise SchemaError(
                expected="a file", found="a symbolic link", where=text, remedy="replace the link by the file"
            )
        files.append(LocalFile(text, path))
    return files


def damaged(files: list[LocalFile], jobs: int) -> Iterator[DatasetError]:
    """The tensors whose content, or pointer, has another hash than their name says."""
    for item in files:
        if item.pointer and item.pointer.sha256 != item.sha256:
            yield PointerError(
                expected=f"a pointer to {item.sha256}",
                found=item.pointer.sha256,
                where=item.path,
                remedy=f"restore the pointer: git checkout -- {item.path}",
            )
    here = {item.source: item for item in files if item.path.startswith("blob/") and not item.pointer}
    for path, digest in hash_files(here, jobs):
        if digest != here[path].sha256:
            yield TensorFileError(
                expected="content of the hash in the file name",
                found=str(digest),
                where=here[path].path,
                remedy="pull or import the tensor again",
            )


def check_limits(files: list[LocalFile], remote: dict[str, RemoteFile], findings: Findings) -> None:
    """Entries of each folder, here and on the Hub together, and bytes of each file."""
    for item in files:
        if item.size > HUB_FILE_LIMIT:
            findings.add(
                "error",
                item.path,
                f"at most {HUB_FILE_LIMIT:,} bytes a file",
                f"{item.size:,}",
                "split the tensor's workload",
            )
    entries = set()
    for path in {item.path for item in files} | set(remote):
        parts = path.split("/")
        entries |= {("/".join(parts[:depth]), parts[depth]) for depth in range(len(parts))}
    for folder, count in sorted(Counter(folder for folder, _ in entries).items()):
        if count > FOLDER_ENTRY_WARNING:
            level = "error" if count > FOLDER_ENTRY_LIMIT else "warning"
            findings.add(
                level,
                folder or ".",
                f"at most {FOLDER_ENTRY_LIMIT:,} entries a folder",
                f"{count:,}",
                "the Hub refuses larger folders: publish fewer workloads of this definition",
            )
