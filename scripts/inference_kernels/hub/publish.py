"""Publish what the Hub lacks in batches, tensors first and records last."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from inference_kernels.core.files import parse_json, read_text
from inference_kernels.core.findings import Findings
from inference_kernels.core.layout import BLOB
from inference_kernels.core.records import read_captures
from inference_kernels.hub.card import card_text
from inference_kernels.hub.client import HubBusy, HubError, HubReader, RemoteFile, require_package
from inference_kernels.hub.files import (
    CARD,
    STATE_FOLDER,
    LocalFile,
    check_limits,
    is_published,
    local_files,
    stage,
    strays,
)
from inference_kernels.hub.retry import Patience, Tell, run_limited, with_retries
from inference_kernels.hub.state import is_sha256, quiet, read_state
from inference_kernels.hub.writer import HubWriter

# More files in one commit are answered with time-outs,
# https://github.com/huggingface/huggingface_hub/issues/3071
BATCH_FILES = 100
BATCH_BYTES = 5 * 10**9
# More than this at once is more likely a part of a checkout than a curation.
DELETED_SHARE = 0.25


@dataclass(frozen=True)
class Batch:
    """One commit. copies: (source, target) of content that the Hub has at another path; deletions: paths."""

    stage: int
    files: tuple[LocalFile, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    deletions: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Sum the bytes of the files."""
        return sum(item.size for item in self.files)

    def describe(self) -> str:
        """Describe the batch in one line."""
        if self.deletions:
            return f"{len(self.deletions)} deletions, from {self.deletions[0]}"
        first = self.files[0].path if self.files else self.copies[0][1]
        return f"{len(self.files)} files of {self.size:,} bytes, {len(self.copies)} copies, from {first}"


@dataclass
class PublishPlan:
    """What a publication sends. remote: the Hub's listing, None if it was not compared."""

    files: list[LocalFile]
    batches: list[Batch]
    findings: Findings
    remote: dict[str, RemoteFile] | None = None
    sent: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Count what is sent and what was found."""
        return {
            "files": len(self.files),
            "bytes": sum(item.size for item in self.files),
            "batches": len(self.batches),
            "to_send": sum(len(batch.files) for batch in self.batches),
            "to_send_bytes": sum(batch.size for batch in self.batches),
            "copies": sum(len(batch.copies) for batch in self.batches),
            "to_delete": sum(len(batch.deletions) for batch in self.batches),
            "compared_with_hub": self.remote is not None,
            "commits": self.sent,
            "errors": self.findings.count("error"),
            "warnings": self.findings.count("warning"),
        }


def publishable(root: Path, repository: str) -> list[LocalFile]:
    """List the card and all published files in the order of sending."""
    text = card_text(root, (record["class"] for record in read_captures(root)), repository)
    return sorted([*local_files(root), LocalFile(CARD, text.encode())], key=lambda item: (stage(item.path), item.path))


def make_plan(
    files: list[LocalFile],
    remote: dict[str, RemoteFile] | None,
    batch_files: int = BATCH_FILES,
    batch_bytes: int = BATCH_BYTES,
    delete: bool = False,
) -> PublishPlan:
    """Check limits and completeness and form batches; problems are in the plan's findings.

    delete: remove at the end what only the Hub has.
    """
    findings, known = Findings(), remote or {}
    check_limits(files, known, findings)
    pending = [item for item in files if not item.same_as(known.get(item.path))]
    for item in pending:
        if item.pointer:
            findings.add(
                "note" if remote is None else "error",
                item.path,
                "tensor bytes, or the same object on the Hub",
                "a Git LFS pointer",
                "pull the tensor first",
            )
    _check_records(files, known, findings)
    batches = list(_batches([item for item in pending if not item.pointer], known, batch_files, batch_bytes))
    if delete:
        batches += _deletions(files, known, batch_files, findings)
    return PublishPlan(files, batches, findings, remote)


def _deletions(
    files: list[LocalFile], remote: dict[str, RemoteFile], count: int, findings: Findings
) -> Iterator[Batch]:
    """Form batches of what only the Hub has, records first: no reader sees a record of a deleted tensor."""
    paths = sorted(strays(files, remote), key=lambda path: (-stage(path), path))
    for path in paths:
        findings.add("note", path, "a file of this checkout", "only on the Hub", "it is deleted there")
    for start in range(0, len(paths), count):
        yield Batch(0, deletions=tuple(paths[start : start + count]))


def check_deletions(plan: PublishPlan) -> None:
    """Raise HubError if the plan deletes a large share of the Hub's files: the checkout may be a part of it."""
    count = sum(len(batch.deletions) for batch in plan.batches)
    there = sum(is_published(path) for path in plan.remote or {})
    if count > DELETED_SHARE * there:
        raise HubError(
            expected=f"at most {DELETED_SHARE:.0%} of the Hub's {there} files deleted at a time",
            found=f"{count} deletions",
            where="--delete",
            remedy="check that the checkout is complete (--delete --dry-run lists them), then add --yes",
        )


def _check_records(files: list[LocalFile], remote: dict[str, RemoteFile], findings: Findings) -> None:
    """Check that every tensor a record names is here or on the Hub; generated ones come from their recipes."""
    have = {item.path for item in files} | set(remote)
    for item in files:
        if stage(item.path) < 3 or not isinstance(item.source, Path):
            continue
        named = {match[0] for match in re.finditer(BLOB, read_text(item.source)) if match[1] != "generated"}
        for text in sorted(named - have):
            findings.add(
                "error", item.path, f"the tensor {text}", "no such file, here or on the Hub", "pull or import it first"
            )


def _batches(pending: list[LocalFile], remote: dict[str, RemoteFile], count: int, size: int) -> Iterator[Batch]:
    """Form batches: each object once, its other paths as copies, then the rest stage by stage."""
    at = {item.sha256: item.path for item in remote.values() if item.sha256}
    first, copies = [], []
    for item in pending:
        if stage(item.path) == 0 and item.sha256 in at:
            copies.append((at[item.sha256], item.path))
        elif stage(item.path) == 0:
            at[item.sha256] = item.path
            first.append(item)
    yield from (Batch(0, files=tuple(group)) for group in _groups(first, count, size))
    for start in range(0, len(copies), count):
        yield Batch(0, copies=tuple(copies[start : start + count]))
    for number in range(1, 5):
        rest = [item for item in pending if stage(item.path) == number]
        yield from (Batch(number, files=tuple(group)) for group in _groups(rest, count, size))


def _groups(items: Iterable[LocalFile], count: int, size: int) -> Iterator[list[LocalFile]]:
    """Split into runs of at most `count` files and `size` bytes; a larger file is alone."""
    group: list[LocalFile] = []
    for item in items:
        if group and (len(group) == count or sum(one.size for one in group) + item.size > size):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


class Ledger:
    """Which objects the Hub has, so that no run sends one again.

    Append-only JSONL in the checkout, one line per object, by hash. A last line cut by a kill is ignored; other
    damage moves the file aside: its objects are offered to the Hub again, which knows them.
    """

    def __init__(self, root: Path, repository: str, tell: Tell = quiet):
        self.path = root / STATE_FOLDER / f"{repository.replace('/', '--')}.jsonl"
        self.hashes: set[str] = set(read_state(self.path, _ledger_hashes, (), tell))

    def add(self, hashes: Iterable[str]) -> None:
        """Record objects that were sent; on disk when this returns."""
        new = sorted(set(hashes) - self.hashes)
        if not new:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as stream:
            _drop_torn_line(stream)
            stream.write("".join(json.dumps({"sha256": value}) + "\n" for value in new).encode())
            stream.flush()
            os.fsync(stream.fileno())
        self.hashes.update(new)


def _drop_torn_line(stream: BinaryIO) -> None:
    stream.seek(0)
    stream.truncate(stream.read().rfind(b"\n") + 1)


def _ledger_hashes(text: str) -> list[str]:
    found = [parse_json(line, "ledger")["sha256"] for line in text[: text.rfind("\n") + 1].splitlines()]
    for value in found:
        if not is_sha256(value):
            raise ValueError(f"{value!r} is no SHA-256")
    return found


def send(
    plan: PublishPlan, writer: HubWriter, ledger: Ledger, patience: Patience, tell: Tell, limited: Any = run_limited
) -> None:
    """Send the plan's batches in order; the ids of the commits go into `plan.sent`.

    An object is sent, and recorded in the ledger, before the commit that names it, so a commit that fails,
    now or in a killed run, does not send it again. limited: runs a step within a time limit.
    """
    for number, batch in enumerate(plan.batches, 1):
        where = f"batch {number} of {len(plan.batches)}"
        outgoing = [item.outgoing() for item in batch.files]
        run = partial(_run, patience, tell, limited, where)
        unsent = [item for item in outgoing if batch.stage == 0 and item.sha256 not in ledger.hashes]
        if unsent:
            ledger.add(run(partial(writer.upload, unsent), sum(item.size for item in unsent)))
        known = [item.sha256 for item in outgoing if item.sha256 in ledger.hashes]
        step = partial(
            writer.commit, outgoing, list(batch.copies), known, f"Publish: {batch.describe()}", batch.deletions
        )
        try:
            plan.sent.append(run(step, batch.size))
        except HubBusy:
            raise
        except HubError as error:
            raise HubError(
                expected=error.expected,
                found=error.found,
                where=error.where,
                remedy=f"{error.remedy}; if it lacks an object, delete {ledger.path}",
            ) from error
        tell(f"{where} done: {batch.describe()}")


def _run(patience: Patience, tell: Tell, limited: Any, where: str, step: Any, size: int) -> Any:
    return with_retries(lambda: limited(step, patience.limit_s(size), where), patience, tell)


def listing(reader: HubReader, revision: str, patience: Patience, tell: Tell) -> tuple[str, dict[str, RemoteFile]]:
    """Return (commit, its files by path) of a revision."""
    commit = with_retries(lambda: reader.commit_of(revision), patience, tell)
    return commit, {item.path: item for item in with_retries(lambda: reader.files(commit), patience, tell)}


def open_writer(repository: str) -> HubWriter:
    """Open the Hub for writing. EnvironmentMissing without huggingface_hub."""
    require_package()
    return HubWriter(repository)
