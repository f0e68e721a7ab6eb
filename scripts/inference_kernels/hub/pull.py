"""Pull the tensors of selected workloads, and into a folder that follows the Hub the records first.

A file gets its name by one rename after its hash was verified, so a killed pull leaves the pointer, or no
file, as before. Partial files stay in results/hub/parts/, where the next pull resumes them.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import EnvironmentMissing, PointerError
from inference_kernels.core.files import atomic_writer, sync_directory, write_text
from inference_kernels.core.findings import Findings
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.layout import POINTER_FIRST_LINE, BlobPath, inside, read_pointer
from inference_kernels.hub.client import HubBusy, HubReader, RemoteFile, WrongBytes, git_sha1, require_package
from inference_kernels.hub.files import STATE_FOLDER
from inference_kernels.hub.retry import Patience, Tell, with_retries
from inference_kernels.hub.revision import FileMove, Revision, follows, key_of, plan_moves, report_difference, to_stage
from inference_kernels.hub.selection import Need, PullSelection, needs, select
from inference_kernels.hub.state import HashCache

# A hash that is wrong twice is wrong on the Hub, not on the way.
WRONG_BYTES_LIMIT = 2


@dataclass
class Checkout:
    """A local tree and the Hub's listing. remote: None without a listing (dry run).

    hashes: of the tensors here. damaged: paths of tensors whose content is not the one of their name.
    """

    root: Path
    remote: dict[str, RemoteFile] | None
    findings: Findings = field(default_factory=Findings)
    hashes: HashCache | None = None
    damaged: set[str] = field(default_factory=set)

    def verify(self, texts: Iterable[str], jobs: int) -> None:
        """Hash the tensors here among `texts`; those whose content is not the one of their name are damaged."""
        self.hashes = self.hashes or HashCache(self.root)
        here = [text for text in texts if self._is_tensor(text)]
        self.hashes.learn(here, jobs)
        self.damaged = {text for text in here if self.hashes.get(text) != Path(text).stem}

    def _is_tensor(self, text: str) -> bool:
        path = inside(self.root, text, text)
        return path.is_file() and not read_pointer(path)

    def lacks(self, text: str) -> bool:
        """Tell whether a path's content is missing: no file, a pointer, or a tensor that `verify` found damaged.

        PointerError for a pointer to another object than the file name says.
        """
        path = inside(self.root, text, text)
        if not path.exists():
            return True
        if not text.startswith("blob/"):
            return False
        pointer, name = read_pointer(path), BlobPath.parse(text, text).sha256
        if pointer and pointer.sha256 != name:
            raise PointerError(
                expected=f"a pointer to {name}",
                found=pointer.sha256,
                where=text,
                remedy=f"restore the pointer: git checkout -- {text}",
            )
        return bool(pointer) or text in self.damaged

    def misnamed(self, listed: RemoteFile) -> bool:
        """Tell, and report, that the Hub lists a tensor with another object than its name."""
        expected = Path(listed.path).stem
        if not listed.path.startswith("blob/") or listed.sha256 in (None, expected):
            return False
        remedy = "nothing is fetched: report it to the dataset's owner"
        self.findings.add("error", listed.path, f"the object {expected} on the Hub", listed.sha256 or "", remedy)
        return True

    def missing(self, text: str) -> int:
        """Return the bytes to fetch for a path: 0 if it is here, or if neither listing nor pointer gives a size."""
        if not self.lacks(text):
            return 0
        path = inside(self.root, text, text)
        pointer = read_pointer(path) if path.exists() else None
        return pointer.size if pointer else self._listed(text) or 0

    def _listed(self, text: str) -> int | None:
        return self.remote[text].size if self.remote and text in self.remote else None


@dataclass(frozen=True)
class Fetch:
    """One content to fetch and all paths that share it."""

    remote: RemoteFile
    targets: tuple[str, ...]


def plan_records(state: Checkout, base: Revision) -> tuple[list[FileMove], list[Fetch]]:
    """Return (what becomes of the small files, what to stage for it). A starter tensor that is wrong on the Hub stays.

    A folder that does not follow the Hub keeps its files; that they differ is a warning.
    """
    remote = state.remote or {}
    if not follows(state.root, base):
        report_difference(state.root, remote, state.findings)
        return [], []
    moves = [move for move in plan_moves(state.root, remote, base) if not (move.remote and state.misnamed(move.remote))]
    return moves, [Fetch(there, (path,)) for path, there in to_stage(state.root, moves).items()]


def plan_tensors(state: Checkout, selection: PullSelection, jobs: int = 4) -> tuple[list[Need], list[Fetch]]:
    """Return (selected workloads, what to fetch), once the tensors here are verified by hash.

    What the Hub lacks, or holds differently, is a finding.
    """
    state.verify(sorted({text for need in needs(state.root) if selection.wants(need) for text in need.paths}), jobs)
    chosen = select(state.root, selection, state.missing)
    return chosen, _fetches(state, sorted({text for need in chosen for text in need.paths}))


def _fetches(state: Checkout, paths: Iterable[str]) -> list[Fetch]:
    groups: dict[str, list[RemoteFile]] = {}
    for text in paths:
        if not state.lacks(text):
            continue
        listed = state.remote.get(text) if state.remote is not None else _from_name(text, state.missing(text))
        if listed is None:
            found = "none; the local file is damaged" if text in state.damaged else "none"
            state.findings.add("error", text, "the file on the Hub", found, "pull from another revision")
        elif not state.misnamed(listed):
            groups.setdefault(key_of(listed), []).append(listed)
    return [Fetch(group[0], tuple(item.path for item in group)) for group in groups.values()]


def _from_name(text: str, size: int) -> RemoteFile:
    """Describe a file by its path alone, for a plan without a listing; size 0 if unknown."""
    return RemoteFile(text, size, "", Path(text).stem)


def check_space(root: Path, fetches: list[Fetch]) -> None:
    """Raise EnvironmentMissing if the disk is too small for all of `fetches`."""
    wanted = sum(item.remote.size * len(item.targets) for item in fetches)
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if wanted > free:
        raise EnvironmentMissing(
            expected=f"{wanted:,} bytes of free space",
            found=f"{free:,}",
            where=str(root),
            remedy="pull less: --definition, --workload or --max-bytes",
        )


def fetch_all(
    reader: HubReader, commit: str, state: Checkout, fetches: list[Fetch], patience: Patience, tell: Tell, jobs: int = 4
) -> Iterator[Fetch]:
    """Fetch, verify and place; yield what is done. Wrong bytes are findings; other failures end the pull."""
    with ThreadPoolExecutor(jobs) as pool:
        one = partial(_fetch, reader, commit, state.root, patience, tell)
        waiting = {pool.submit(one, item): item for item in fetches}
        try:
            for done in as_completed(waiting):
                try:
                    done.result()
                except WrongBytes as error:
                    state.findings.add_error(error)
                    continue
                yield waiting[done]
        except BaseException:
            patience.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def refuse_part(findings: Findings) -> None:
    """Raise the first error among the findings: a revision is placed whole or not at all."""
    one = next(item for item in findings.items if item.level == "error")
    raise WrongBytes(expected=one.expected, found=one.found, where=one.where, remedy=one.remedy)


def _fetch(reader: HubReader, commit: str, root: Path, patience: Patience, tell: Tell, item: Fetch) -> None:
    part = root / STATE_FOLDER / "parts" / (key_of(item.remote))
    part.parent.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with_retries(partial(_download, reader, commit, item.remote, part, patience, wrong), patience, tell)
    for text in item.targets[1:]:
        _copy(part, inside(root, text, text))
    target = inside(root, item.targets[0], item.targets[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    os.chmod(part, 0o644)
    os.replace(part, target)
    sync_directory(target.parent)


def _download(
    reader: HubReader, commit: str, remote: RemoteFile, part: Path, patience: Patience, wrong: list[str]
) -> None:
    """Try once. On return the part is complete, of the right hash, and on disk."""
    deadline = time.monotonic() + patience.limit_s(remote.size)
    reader.download(
        remote.path, commit, part, remote.size, lambda: patience.stopped.is_set() or time.monotonic() > deadline
    )
    found = sha256_file(part) if remote.sha256 else git_sha1(part.read_bytes())
    expected = key_of(remote)
    if found == expected:
        with open(part, "rb") as stream:
            os.fsync(stream.fileno())
        return
    part.unlink()
    wrong.append(found)
    kind: Any = WrongBytes if len(wrong) == WRONG_BYTES_LIMIT else HubBusy
    raise kind(
        expected=f"content of hash {expected}",
        found=f"content of hash {found}",
        where=remote.path,
        remedy="report it to the dataset's owner: the Hub's file is damaged",
    )


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as stream, atomic_writer(target) as out:
        shutil.copyfileobj(stream, out, 2**20)


def write_pointers(state: Checkout) -> int:
    """Write a Git LFS pointer for every missing large tensor that the records name; return how many."""
    count = 0
    for text in sorted({text for need in needs(state.root) for text in need.paths}):
        path = inside(state.root, text, text)
        listed = (state.remote or {}).get(text)
        if text.startswith("blob/workloads/") and listed and not path.exists():
            write_text(path, f"{POINTER_FIRST_LINE.decode()}\noid sha256:{Path(text).stem}\nsize {listed.size}\n")
            count += 1
    return count


def summary(state: Checkout, chosen: list[Need], fetches: list[Fetch]) -> dict[str, Any]:
    """Count what a plan fetches; content at several paths is fetched once. unknown: contents of unknown size."""
    classes = sorted({need.data_class for need in chosen})
    return {
        "workloads": len(chosen),
        "classes": {name: sum(need.data_class == name for need in chosen) for name in classes},
        "to_fetch": len(fetches),
        "to_fetch_bytes": sum(item.remote.size for item in fetches),
        "paths": sum(len(item.targets) for item in fetches),
        "unknown": sum(item.remote.size == 0 for item in fetches),
        "hashed": state.hashes.hashed if state.hashes else 0,
        "damaged": len(state.damaged),
    }


def open_reader(repository: str) -> HubReader:
    """Open the Hub for reading. EnvironmentMissing without huggingface_hub."""
    require_package()
    return HubReader(repository)
