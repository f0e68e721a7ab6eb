"""Refuse a curation that would delete what it cannot account for: links, failed listings, lost files, too much."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from inference_kernels.core.errors import NotFound, PathError, SchemaError

TREES = ("blob", "definitions", "solutions", "tasks", "workloads")
SHARE = 0.5  # of the records or of the tensors: the rules drop less of a capture; more needs the user's word


def require_plain_folders(root: Path) -> None:
    """Walk all that curation may delete from; PathError for a linked folder, NotFound for one it cannot list."""
    for name in ("captures.jsonl", *TREES):
        _refuse_link(root / name)
    for name in TREES:
        top = root / name
        if not top.exists():
            continue
        for folder, folders, _ in os.walk(top, onerror=_unlisted):
            for child in folders:
                _refuse_link(Path(folder, child))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise PathError(
            expected="a folder or file of the root itself",
            found=f"a symbolic link to {os.readlink(path)}",
            where=str(path),
            remedy="curate the place it leads to, or replace the link by what it leads to",
        )


def _unlisted(error: OSError) -> NoReturn:
    raise NotFound(
        expected="a folder that can be listed",
        found=error.strerror or str(error),
        where=str(error.filename),
        remedy="make it readable; what cannot be seen is not taken for unneeded",
    )


def require_workload_files(root: Path, records: Iterable[dict], settled: set[str]) -> None:
    """NotFound if records name a definition whose workload file is gone. settled: definitions without that need."""
    for name in sorted({record["definition"] for record in records} - settled):
        raise NotFound(
            expected=f"the workload file of {name}, which captures.jsonl has records of",
            found="none",
            where=str(root / "workloads"),
            remedy="restore the file, or import its capture run again",
        )


def require_share(plan: Any, record_count: int, tensor_count: int) -> None:
    """SchemaError if the plan drops more than SHARE of the records or of the tensors."""
    for kind, count in (("record", record_count), ("tensor", tensor_count)):
        dropped = len(plan.of(kind))
        if dropped > SHARE * count:
            raise SchemaError(
                expected=f"a plan that drops at most {SHARE:.0%} of the {kind}s",
                found=f"{dropped} of {count}",
                where=str(plan.root),
                remedy="read the plan (without --apply), then add --yes",
            )
