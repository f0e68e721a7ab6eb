"""One release of the dataset as a mapping of path to bytes: a folder, or a git revision without checkout."""

import io
import subprocess
import tarfile
from pathlib import Path

from .errors import SchemaError
from .files import LEFTOVER

# What a comparison reads; tensors are compared by the hashes in their paths.
PARTS = ("captures.jsonl", "definitions", "solutions", "tasks", "workloads")
SUFFIXES = (".json", ".jsonl")


def from_folder(root: Path) -> dict[str, bytes]:
    """The compared files below a dataset root; SchemaError if it holds none."""
    found = {}
    for part in PARTS:
        paths = [root / part] if (root / part).is_file() else sorted((root / part).rglob("*"))
        found |= {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in paths
            if _wanted(path.name) and path.is_file()
        }
    return _not_empty(found, str(root))


def from_git(repository: Path, revision: str) -> dict[str, bytes]:
    """The compared files of a revision, through `git archive`; SchemaError for one that git does not know."""
    commit = _git(repository, revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    commit_id = commit.decode().strip()
    present = _git(repository, revision, "ls-tree", "--name-only", commit_id).decode().splitlines()
    parts = [part for part in PARTS if part in present]
    if not parts:
        return _not_empty({}, revision)
    archive = _git(repository, revision, "archive", "--format=tar", commit_id, "--", *parts)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {
            member.name: tar.extractfile(member).read()
            for member in tar
            if member.isfile() and _wanted(Path(member.name).name)
        }
    return _not_empty(found, revision)


def _wanted(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(LEFTOVER)


def _git(repository: Path, revision: str, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True)
    except FileNotFoundError as error:
        raise SchemaError(
            expected="git", found="no such program", where=revision, remedy="install git, or compare two folders"
        ) from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
        raise SchemaError(
            expected=f"a revision of {repository}",
            found=words[-1],
            where=revision,
            remedy="pass commits, tags or branches of this repository",
        )
    return done.stdout


def _not_empty(found: dict[str, bytes], where: str) -> dict[str, bytes]:
    if not any(name.startswith("definitions/") for name in found):
        raise SchemaError(
            expected="a dataset with definitions/",
            found="none",
            where=where,
            remedy="pass the root of a dataset, or a revision that holds one",
        )
    return found
