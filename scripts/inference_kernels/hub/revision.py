"""The small files of one revision, everything but the large tensors: staged whole, then moved together.

results/hub/revision.json says which revision the folder follows, and with which content each file arrived: a
file of other content was edited here. Contents are staged by hash, so what a cut pull left serves another
revision only where that has the very same content.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.core.files import parse_json, sync_directory, write_json
from inference_kernels.core.findings import Findings
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.layout import inside
from inference_kernels.hub.client import RemoteFile, git_sha1
from inference_kernels.hub.files import CARD, STATE_FOLDER, is_published, stage
from inference_kernels.hub.state import quiet, read_state

STAGED = f"{STATE_FOLDER}/staged"
EDITED = f"{STATE_FOLDER}/edited"


@dataclass
class Revision:
    """What a pull brought. commit: None before the first and while files are moved; files: known contents."""

    repository: str | None = None
    commit: str | None = None
    files: dict[str, list[str]] = field(default_factory=dict)

    def save(self, root: Path) -> None:
        """Write the record; on disk when this returns."""
        fields = {"repository": self.repository, "commit": self.commit, "files": self.files}
        write_json(root / STATE_FOLDER / "revision.json", fields)


@dataclass(frozen=True)
class FileMove:
    """What becomes of one path. kind: place, keep (edited here), aside (edited here, then placed) or remove."""

    path: str
    kind: str
    remote: RemoteFile | None = None


def read_revision(root: Path, tell: Callable[[str], None] = quiet) -> Revision:
    """Read which revision the folder follows; a damaged record is moved aside."""
    return read_state(root / STATE_FOLDER / "revision.json", _parse, Revision(), tell)


def _parse(text: str) -> Revision:
    held = parse_json(text, "revision.json")
    revision = Revision(held["repository"], held["commit"], dict(held["files"]))
    values = [revision.repository, revision.commit or "", *(one for ids in revision.files.values() for one in [*ids])]
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a field of a wrong type")
    return revision


def follows(root: Path, revision: Revision) -> bool:
    """Tell whether pull keeps the small files: it brought them, or they are not here. Those of a clone are git's."""
    return bool(revision.files) or not (root / "captures.jsonl").exists()


def small_files(remote: dict[str, RemoteFile]) -> dict[str, RemoteFile]:
    """Select everything but the large tensors, in the order in which it is placed: captures.jsonl last."""
    paths = [path for path in remote if is_published(path) and not path.startswith("blob/workloads/")]
    return {path: remote[path] for path in sorted(paths, key=lambda path: (stage(path), path))}


def key_of(remote: RemoteFile) -> str:
    """Return the hash by which the Hub lists a content."""
    return remote.sha256 or remote.git_sha1


def plan_moves(root: Path, remote: dict[str, RemoteFile], base: Revision) -> list[FileMove]:
    """Decide what becomes of each small file here; equal ones need nothing."""
    wanted = small_files(remote)
    moves = []
    for path, there in wanted.items():
        here, known = _ids(root, path), base.files.get(path, [])
        if key_of(there) in here:
            continue
        edited = here and not path.startswith("blob/") and not here & set(known)
        kind = "place" if not edited else "keep" if known == [key_of(there)] else "aside"
        moves.append(FileMove(path, kind, there))
    for path in sorted(set(base.files) - set(wanted)):
        if here := _ids(root, path):
            moves.append(FileMove(path, "remove" if here & set(base.files[path]) else "keep"))
    return moves


def _ids(root: Path, path: str) -> set[str]:
    """Return both hashes of a file here; none without a file."""
    place = inside(root, path, path)
    return {sha256_file(place), git_sha1(place.read_bytes())} if place.exists() else set()


def to_stage(root: Path, moves: Iterable[FileMove]) -> dict[str, RemoteFile]:
    """List what is to be fetched, by the path of its staged file."""
    wanted = {staged(move.remote): move.remote for move in moves if move.remote and move.kind in ("place", "aside")}
    return {path: there for path, there in wanted.items() if key_of(there) not in _ids(root, path)}


def staged(remote: RemoteFile) -> str:
    """Name the staged file of a content."""
    return f"{STAGED}/{key_of(remote)}"


def apply(root: Path, base: Revision, new: Revision, moves: list[FileMove], findings: Findings) -> None:
    """Move what is staged into place, remove what the revision no longer has, and record the revision.

    A kill leaves the record of both contents of each file, so the next pull takes neither for an edit.
    """
    both = {path: sorted({*base.files.get(path, []), *new.files.get(path, [])}) for path in base.files | new.files}
    Revision(new.repository, None, both).save(root)
    left = [staged(move.remote) for move in moves if move.remote and move.kind != "keep"]
    for move in moves:
        if move.kind == "keep":
            _say_kept(move, findings)
            continue
        if move.kind == "aside":
            _set_aside(root, move, findings)
        if move.remote:
            left.remove(staged(move.remote))
            _place(root / staged(move.remote), inside(root, move.path, move.path), staged(move.remote) in left)
        else:
            _remove(root, move.path)
    new.save(root)
    shutil.rmtree(root / STAGED, ignore_errors=True)


def _place(source: Path, target: Path, again: bool) -> None:
    """again: the content is needed at another path too."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if again:
        copy = source.with_suffix(".copy")
        shutil.copyfile(source, copy)
        source = copy
    os.chmod(source, 0o644)
    os.replace(source, target)
    sync_directory(target.parent)


def _remove(root: Path, path: str) -> None:
    place = inside(root, path, path)
    place.unlink()
    for folder in place.relative_to(root).parents:
        if folder == Path() or any((root / folder).iterdir()):
            break
        (root / folder).rmdir()


def _say_kept(move: FileMove, findings: Findings) -> None:
    remedy = "delete it here to take the Hub's" if move.remote else "delete it here too, or publish it"
    found = "edited here; kept" if move.remote else "deleted on the Hub, edited here; kept"
    findings.add("warning", move.path, "the file of the revision", found, remedy)


def _set_aside(root: Path, move: FileMove, findings: Findings) -> None:
    target, number = root / EDITED / move.path, 1
    while os.path.lexists(target):
        number += 1
        target = (root / EDITED / move.path).with_name(f"{Path(move.path).name}.{number}")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(inside(root, move.path, move.path), target)
    findings.add(
        "warning",
        move.path,
        "the file of the revision",
        f"edited here, and changed on the Hub; your text is now {target.relative_to(root)}",
        "bring your edit into the new file",
    )


def arrived(repository: str, commit: str, remote: dict[str, RemoteFile]) -> Revision:
    """Describe a folder that holds the small files of a commit."""
    return Revision(repository, commit, {path: [key_of(there)] for path, there in small_files(remote).items()})


def report_difference(root: Path, remote: dict[str, RemoteFile], findings: Findings) -> None:
    """Warn if a folder that does not follow the Hub has other small files; the card is generated."""
    there: Any = small_files(remote)
    differ = [path for path in there if path != CARD and key_of(there[path]) not in _ids(root, path)]
    if differ:
        findings.add(
            "warning",
            differ[0],
            "the small files of the revision",
            f"{len(differ)} differ or are missing; kept, since pull did not bring them",
            "update the clone with git; or remove captures.jsonl and pull again (edits are set aside)",
        )
