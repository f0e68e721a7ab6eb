"""Retrieve a capture from its volume, file by file, each one checked against the container's inventory.

A file that is here with its size and hash is not fetched again. The run's manifest comes last, so an interrupted
retrieval cannot be imported.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from inference_kernels.capture.engine import Report
from inference_kernels.capture.run import MANIFEST
from inference_kernels.cloud.spec import CAPTURES_VOLUME, INVENTORY, Runner, capture_folder
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import (
    atomic_writer,
    parse_json,
    read_object,
    remove_leftovers,
    write_bytes,
    write_json,
)
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.layout import inside

ATTEMPTS = 3
LAST = f"dataset/{MANIFEST}"
BATCH_AXES, CONTEXT_AXES = ("B", "batch_size", "num_seqs"), ("T", "N4", "num_pages", "total_seq_len")


class DamagedDownload(Exception):
    """Raised while writing, so that a file does not get its final name."""


@dataclass(frozen=True)
class CallSelection:
    """Which calls of text models to retrieve. batch_sizes: () for all; calls without a batch axis are kept.

    context_endpoints: of each definition, batch size and phase only the shortest and the longest context.
    """

    batch_sizes: tuple[int, ...] = ()
    context_endpoints: bool = False

    def __bool__(self) -> bool:
        return bool(self.batch_sizes) or self.context_endpoints

    def choose(self, calls: dict[str, dict[str, Any]]) -> set[str]:
        """Return the chosen names among `calls`, name -> content of calls/<name>."""
        kept = {
            name
            for name, call in calls.items()
            if not self.batch_sizes or batch_size(call) in (None, *self.batch_sizes)
        }
        if not self.context_endpoints:
            return kept
        groups: dict[tuple, list[tuple[int, str]]] = {}
        for name in sorted(kept):
            record, length = calls[name]["record"], axis(calls[name], CONTEXT_AXES)
            group = (record["definition"], batch_size(calls[name]), record["operation"]["phase"])
            groups.setdefault(group if length is not None else (name,), []).append((length or 0, name))
        return {name for members in groups.values() for _, name in (min(members), max(members))}


def axis(call: dict[str, Any], names: tuple[str, ...]) -> int | None:
    axes = call["workload"]["axes"]
    return next((axes[name] for name in names if name in axes), None)


def batch_size(call: dict[str, Any]) -> int | None:
    return axis(call, BATCH_AXES)


class Retrieval:
    """One capture being fetched to `target`. fresh: take the volume's inventory, not the saved one."""

    def __init__(self, runner: Runner, name: str, target: Path, report: Report, fresh: bool):
        self.runner, self.folder, self.target, self.report = runner, capture_folder(name), target, report
        self.fetched = self.present = 0
        remove_leftovers(target)
        saved = target / INVENTORY
        if fresh or not saved.exists():
            write_bytes(saved, self._read(INVENTORY))
        self.inventory = read_object(saved)

    def run(self, selection: CallSelection) -> dict[str, Any]:
        """Fetch what is missing; CaptureError if a file keeps arriving with other bytes."""
        names = {name: self.target / name for name in self.inventory["files"]}
        listing = None
        if selection:
            names, listing = self._select(names, selection)
        self._refuse_strays(names)
        for name in sorted(names, key=lambda name: (name == LAST, name)):
            if name == LAST and listing is not None:
                write_json(names[name], listing)
            else:
                self._fetch(name, names[name])
        return {
            "run": str(self.target / "dataset"),
            "files": len(names),
            "fetched": self.fetched,
            "present": self.present,
            "bytes": self.inventory["bytes"],
        }

    def _select(self, names: dict[str, Path], selection: CallSelection) -> tuple[dict[str, Path], dict[str, Any]]:
        """Return the files of the chosen calls, and the manifest that lists only them."""
        index = self.target / "index"
        documents = [name for name in names if name.startswith("dataset/calls/")] + [LAST]
        for name in documents:
            self._fetch(name, index / name)
        calls = {PurePosixPath(name).name: read_object(index / name) for name in documents[:-1]}
        chosen = selection.choose(calls)
        tensors = {path for name in chosen for path in call_tensors(calls[name])}

        def wanted(name: str) -> bool:
            part = PurePosixPath(name)
            if part.parts[0] in ("calls", "validation"):
                return part.name in chosen
            return part.parts[0] != "blob" or name in tensors

        manifest = read_object(index / LAST)
        manifest["files"] = {name: entry for name, entry in manifest["files"].items() if wanted(name)}
        manifest["retrieval"] = {
            "batch_sizes": list(selection.batch_sizes),
            "context_endpoints": selection.context_endpoints,
            "calls_left_out": len(calls) - len(chosen),
        }
        listed = {f"dataset/{name}" for name in manifest["files"]} | {LAST}
        return {
            name: path for name, path in names.items() if name in listed or not name.startswith("dataset/")
        }, manifest

    def _refuse_strays(self, names: dict[str, Path]) -> None:
        here = self.target / "dataset"
        for path in sorted(here.rglob("*")) if here.exists() else []:
            if path.is_file() and path.relative_to(self.target).as_posix() not in names:
                raise CaptureError(
                    expected="files of this capture only",
                    found="another one",
                    where=str(path),
                    remedy="remove the folder, or use another --name",
                )

    def _fetch(self, name: str, path: Path) -> None:
        """Fetch one file; it gets its final name only if its size and hash are right."""
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise CaptureError(
                expected="a path inside the capture", found=name, where=INVENTORY, remedy="do not trust this inventory"
            )
        path = inside(self.target, str(path.relative_to(self.target)), name)
        entry = self.inventory["files"][name]
        if path.is_file() and path.stat().st_size == entry["size"] and sha256_file(path) == entry["sha256"]:
            self.present += 1
            return
        for attempt in range(1, ATTEMPTS + 1):
            found = self._download(name, path, entry)
            if found == entry:
                self.fetched += 1
                return
            self.report(
                f"{name}: attempt {attempt} of {ATTEMPTS} gave {found['size']} bytes, SHA-256 {found['sha256'][:12]}"
            )
        raise CaptureError(
            expected=f"{entry['size']} bytes, SHA-256 {entry['sha256']}",
            found="others",
            where=name,
            remedy="run the command with --retrieve-only again",
        )

    def _download(self, name: str, path: Path, entry: dict[str, Any]) -> dict[str, Any]:
        digest, size, found = sha256(), 0, {}
        try:
            with atomic_writer(path) as stream:
                for block in self.runner.read(CAPTURES_VOLUME, f"{self.folder}/{name}"):
                    digest.update(block)
                    size += len(block)
                    stream.write(block)
                found = {"size": size, "sha256": digest.hexdigest()}
                if found != entry:
                    raise DamagedDownload
        except DamagedDownload:
            return found
        except FileNotFoundError as error:
            raise CaptureError(
                expected="the file in the volume",
                found="none",
                where=f"{self.folder}/{name}",
                remedy="the volume was changed: capture again under another --name",
            ) from error
        return found

    def _read(self, name: str) -> bytes:
        """Read a small JSON file of the capture."""
        try:
            content = b"".join(self.runner.read(CAPTURES_VOLUME, f"{self.folder}/{name}"))
        except FileNotFoundError as error:
            raise CaptureError(
                expected="a finished capture in the volume",
                found=f"no {name}",
                where=self.folder,
                remedy="run the command without --retrieve-only",
            ) from error
        parse_json(content.decode(), name)
        return content


def call_tensors(call: dict[str, Any]) -> list[str]:
    """Return the paths of all tensors of one call, as the run names them."""
    record = call["record"]
    places = list(call["workload"]["inputs"].values()) + [
        item for group in ("outputs", "auxiliary") for item in record[group].values()
    ]
    return [item["path"] for item in places if "path" in item]
