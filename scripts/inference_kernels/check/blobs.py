"""The blob part of a check: headers, hashes, pointers, missing and unreferenced files, limits."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.check.state import Blobs
from inference_kernels.core.errors import DatasetError
from inference_kernels.core.files import LEFTOVER
from inference_kernels.core.findings import Findings, Level
from inference_kernels.core.hashing import hash_files
from inference_kernels.core.layout import (
    FOLDER_ENTRY_LIMIT,
    FOLDER_ENTRY_WARNING,
    HUB_FILE_LIMIT,
    STARTER_FILE_LIMIT,
    STARTER_TOTAL_LIMIT,
    BlobPath,
    blob_files,
    pull_command,
    read_pointer,
)
from inference_kernels.core.tensors import read_header

if TYPE_CHECKING:
    from inference_kernels.check.state import Checked

# Kernels that index with 32-bit integers fail on more elements.
LARGE = 2**31


def check(state: "Checked", jobs: int, progress: Callable[..., Any]) -> None:
    """Check every blob of the wanted definitions; findings and figures go into `state`."""
    present = blob_files(state.root)
    texts = {state.relative(path) for path in present}
    here = [path for path in present if _is_candidate(state, path)]
    _missing(state, texts)
    _limits(state, present)
    hashed = progress(hash_files(here, jobs), len(here), "check")
    for path, digest in hashed:
        text = state.relative(path)
        _finish(state.findings, state.blobs, text, digest)
    _notes(state)


def leftover(findings: Findings, text: str) -> None:
    """Report a temporary file of a killed writer."""
    findings.add("warning", text, "finished files", "a leftover of a killed import", "import again, or delete it")


def _is_candidate(state: "Checked", path: Path) -> bool:
    """Judge one file by name, kind and header; True if its content is to be hashed."""
    text, findings, blobs = state.relative(path), state.findings, state.blobs
    if path.name.startswith(LEFTOVER):
        leftover(findings, text)
        return False
    try:
        blob = BlobPath.parse(text, text)
    except DatasetError as error:
        findings.add_error(error)
        return False
    if path.is_symlink():
        findings.error(text, "a file", "a symbolic link", "replace the link by the file")
        return False
    if not path.is_file():
        findings.error(text, "a regular file", "something else", "remove it")
        return False
    if not state.wanted(blob.definition):
        _skip_other(blobs, path, text)
        return False
    if text not in blobs.expected and blob.sha256 not in blobs.mentioned:
        level: Level = "warning" if blob.store == "generated" else "error"
        findings.add(
            level,
            text,
            "a blob that a workload or record names",
            "an unreferenced one",
            "correct the record that should name it, or delete it",
        )
    return _header(findings, blobs, path, text, blob)


def _skip_other(blobs: Blobs, path: Path, text: str) -> None:
    """Look at a blob outside the selection only to see whether it is a pointer."""
    try:
        pointer = read_pointer(path)
    except (DatasetError, OSError):
        return  # a check of that definition reports it
    if pointer:
        blobs.pointers[text] = pointer.size


def _header(findings: Findings, blobs: Blobs, path: Path, text: str, blob: BlobPath) -> bool:
    try:
        pointer = read_pointer(path)
        if pointer:
            blobs.found[text], blobs.pointers[text] = "pointer", pointer.size
            if pointer.sha256 != blob.sha256:
                findings.error(
                    text, f"a pointer to {blob.sha256}", pointer.sha256, f"restore the pointer: git checkout -- {text}"
                )
            if blob.store != "workloads":
                findings.error(
                    text,
                    f"tensor bytes: blob/{blob.store} is not in Git LFS",
                    "a Git LFS pointer",
                    "restore the file, or import the capture again",
                )
            return False
        header = read_header(path)
    except DatasetError as error:
        findings.error(text, error.expected, error.found, error.remedy)
        blobs.found[text] = "broken"
        return False
    except OSError as error:
        _finish(findings, blobs, text, error)
        return False
    blobs.sizes[text] = path.stat().st_size
    for label, form, where in blobs.expected.get(text, ()):
        if form and form != (header.shape, header.dtype):
            findings.error(
                where,
                f"{label} {list(form[0])} {form[1]}",
                f"{list(header.shape)} {header.dtype} in {text}",
                "import the workload again",
            )
            blobs.found[text] = "broken"
    if math.prod(header.shape) > LARGE:
        findings.add(
            "note",
            text,
            f"up to {LARGE:,} elements",
            f"{math.prod(header.shape):,} (large)",
            "use 64-bit offsets on it",
        )
    return True


def _finish(findings: Findings, blobs: Blobs, text: str, digest: str | OSError) -> None:
    if isinstance(digest, OSError):
        findings.error(text, "a readable file", str(digest.strerror), "check the disk and permissions")
        blobs.found[text] = "broken"
    elif digest != Path(text).stem:
        findings.error(
            text, "content of the hash in the file name", f"SHA-256 {digest}", "fetch or import the file again"
        )
        blobs.found[text] = "broken"
    else:
        blobs.found.setdefault(text, "sound")


def _missing(state: "Checked", texts: set[str]) -> None:
    for text, users in sorted(state.blobs.expected.items()):
        if text in texts:
            continue
        label, _, where = users[0]
        if text in state.blobs.recipes:
            state.blobs.absent_generated.add(text)
        elif "/generated/" in text:
            state.findings.error(where, f"{label} at {text}, or a recipe of it", "neither", "import the capture again")
        else:
            state.findings.error(
                where, f"{label} at {text}", "no such file", "import the capture again, or restore the file"
            )


def _limits(state: "Checked", present: list[Path]) -> None:
    folders: dict[str, int] = {}
    starter = 0
    for path in present:
        text, size = state.relative(path), path.lstat().st_size
        folder = os.path.dirname(text)
        folders[folder] = folders.get(folder, 0) + 1
        if size > HUB_FILE_LIMIT:
            state.findings.error(text, f"at most {HUB_FILE_LIMIT:,} bytes per file", f"{size:,}", "split it")
        if text.startswith("blob/starter/"):
            starter += size
            if size > STARTER_FILE_LIMIT:
                state.findings.error(
                    text,
                    f"starter files of at most {STARTER_FILE_LIMIT:,} bytes",
                    f"{size:,}",
                    "move the workload to blob/workloads",
                )
    if starter > STARTER_TOTAL_LIMIT:
        state.findings.error(
            "blob/starter", f"at most {STARTER_TOTAL_LIMIT:,} bytes", f"{starter:,}", "move workloads to blob/workloads"
        )
    for folder, count in sorted(folders.items()):
        if count > FOLDER_ENTRY_WARNING:
            level: Level = "error" if count > FOLDER_ENTRY_LIMIT else "warning"
            state.findings.add(
                level,
                folder,
                f"at most {FOLDER_ENTRY_LIMIT:,} entries per folder",
                f"{count:,}",
                "the Hub refuses larger folders",
            )


def _notes(state: "Checked") -> None:
    """Note pointers and absent generated files once per definition, with the command that fetches or writes them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for text in state.blobs.pointers:
        groups.setdefault(("pointer", text.split("/")[2]), []).append(text)
    for text in state.blobs.absent_generated:
        groups.setdefault(("generated", text.split("/")[2]), []).append(text)
    for (kind, definition), texts in sorted(groups.items()):
        if kind == "generated":
            state.findings.add(
                "note",
                definition,
                "its seeded weights",
                f"{len(texts)} not materialised",
                f"python scripts/materialize_seeded.py --definition {definition} --all",
            )
            continue
        size = sum(state.blobs.pointers[text] for text in texts)
        total = sum(1 for text in state.blobs.expected if text.split("/")[2] == definition)
        of = f" of {total}" if total else ""
        state.findings.add(
            "note",
            definition,
            "tensor bytes",
            f"{len(texts)}{of} not fetched: Git LFS pointers to {size:,} bytes",
            pull_command({definition}),
        )
