"""What of a checkout belongs on the Hub: order, limits, and comparison with a listing by hash."""

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

# Nothing else leaves the machine. `.gitattributes` is not listed: the Hub keeps its own, which says what it
# stores as large objects. `blob/generated` is written again from recipes.
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
        """Read the Git LFS pointer that stands in for a missing tensor, or None."""
        is_tensor = isinstance(self.source, Path) and self.path.startswith("blob/")
        return read_pointer(self.source) if is_tensor else None

    @cached_property
    def size(self) -> int:
        """Count the bytes of the content; of a pointer, those of the content it names."""
        if self.pointer:
            return self.pointer.size
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """Hash the content. A tensor's hash is its name; `damaged` finds the exceptions."""
        if self.path.startswith("blob/"):
            return BlobPath.parse(self.path, self.path).sha256
        if isinstance(self.source, Path):
            return sha256_file(self.source)
        return hashlib.sha256(self.source).hexdigest()

    def same_as(self, remote: RemoteFile | None) -> bool:
        """Tell whether the Hub holds this content at this path; plain git files are compared by blob id."""
        if remote is None or remote.size != self.size:
            return False
        if remote.sha256:
            return remote.sha256 == self.sha256
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return git_sha1(content) == remote.git_sha1

    def outgoing(self) -> Outgoing:
        """Describe the file as one to send."""
        return Outgoing(self.path, self.source, self.size, self.sha256)


def is_published(path: str) -> bool:
    """Tell whether a repository's path belongs to the dataset, and not to the Hub itself."""
    return path == CARD or any(path == top or path.startswith(f"{top}/") for top in PUBLISHED)


def stage(path: str) -> int:
    """Rank a path in the order of sending and fetching: a reader never sees a record before what it names.

    Tensors first, then code and pages, definitions and other JSON, workloads, and capture records at the end.
    """
    if path.startswith("blob/"):
        return 0
    if not path.endswith((".json", ".jsonl")):
        return 1
    return 4 if path == "captures.jsonl" else 3 if path.startswith("workloads/") else 2


def local_files(root: Path) -> list[LocalFile]:
    """List every published file below `root` except the card, in the order of sending.

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
    """Yield an error per tensor whose content, or pointer, differs from the hash in its name."""
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
    """Check the entries of each folder, local and remote together, and the bytes of each file."""
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


def compare(files: list[LocalFile], remote: dict[str, RemoteFile], findings: Findings) -> None:
    """Check that every local file is on the Hub with the same content; files only the Hub has are warnings.

    A Git LFS pointer is compared by the object it names. Files outside the published set belong to the Hub.
    """
    for item in files:
        there = remote.get(item.path)
        if there is None:
            findings.add("error", item.path, "the file on the Hub", "none", "publish it")
        elif not item.same_as(there):
            found = there.sha256 or f"git blob {there.git_sha1}"
            findings.add("error", item.path, f"SHA-256 {item.sha256} on the Hub", found, "publish it, or pull it")
    for path in strays(files, remote):
        findings.add(
            "warning",
            path,
            "only files of this checkout on the Hub",
            "one more",
            "pull it, or remove it from the Hub with `publish --delete`",
        )


def strays(files: list[LocalFile], remote: dict[str, RemoteFile]) -> list[str]:
    """List the dataset's files that only the Hub has."""
    return sorted(path for path in set(remote) - {item.path for item in files} if is_published(path))


def verify(files: list[LocalFile], remote: dict[str, RemoteFile], jobs: int, findings: Findings) -> None:
    """Hash every local tensor, then `compare`."""
    for error in damaged(files, jobs):
        findings.add_error(error)
    compare(files, remote, findings)
