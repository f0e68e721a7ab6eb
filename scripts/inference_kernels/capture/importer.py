"""Import a complete, validated capture run into a dataset root. Nothing else may write workloads and captures.

Order on disk: tensors, then captures.jsonl, then the workload files. An import killed in between leaves blobs that
nothing references or records without workload; the checker names them and the same import completes them.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.capture.run import MANIFEST, files_below, read_manifest
from inference_kernels.core.constraints import check_constraint
from inference_kernels.core.definitions import const_axes, load_definition, resolve_shape
from inference_kernels.core.errors import DatasetError, ImportRefused
from inference_kernels.core.files import atomic_writer, read_json, remove_leftovers
from inference_kernels.core.hashing import BLOCK, sha256_file
from inference_kernels.core.layout import STARTER_FILE_LIMIT, STARTER_TOTAL_LIMIT, BlobPath, blob_files, inside
from inference_kernels.core.records import (
    read_captures,
    read_workloads,
    record_tensors,
    tensor_reference,
    workload_line,
    workload_uuid,
    write_captures,
    write_workloads,
)
from inference_kernels.core.schema import schema_errors, workload_line_errors
from inference_kernels.core.tensors import load_tensor, read_header


@dataclass(frozen=True)
class Call:
    """One captured call, ready to import: its workload and complete record, paths still those of the run."""

    definition: dict
    workload: dict[str, Any]
    record: dict[str, Any]

    @property
    def input_paths(self) -> dict[str, str]:
        return {name: item["path"] for name, item in self.workload["inputs"].items() if "path" in item}

    def paths(self) -> Iterator[tuple[str, bool]]:
        """Yield (path in the run, whether a recipe regenerates it) of every tensor."""
        for name, path in self.input_paths.items():
            yield path, name in self.record.get("generated", {})
        for path in record_tensors(self.record).values():
            yield path, False


def _refuse(expected: str, found: str, where: Path | str, remedy: str) -> ImportRefused:
    return ImportRefused(expected=expected, found=found, where=str(where), remedy=remedy)


def read_run(run: Path, root: Path) -> list[Call]:
    """Read the calls of a run and check all but tensor data; ImportRefused for anything doubtful."""
    manifest = read_manifest(run)
    if not manifest["complete"]:
        raise _refuse(
            "a complete run",
            f"{len(manifest['cases'])} finished cases, not validated",
            run / MANIFEST,
            "run the capture command again: it resumes",
        )
    _check_listing(run, manifest)
    calls = [_read_call(path, run, root) for path in sorted((run / "calls").glob("*.json"))]
    if not calls:
        raise _refuse("captured calls", "none", run, "capture again")
    used = {path for call in calls for path, _ in call.paths()}
    for name in manifest["files"]:
        if name.startswith("blob/") and name not in used:
            raise _refuse("tensors that a call names", "one that none names", run / name, "capture again")
    return calls


def _check_listing(run: Path, manifest: dict) -> None:
    present, listed = set(files_below(run)), set(manifest["files"])
    for name in sorted(present - listed):
        raise _refuse("only files that manifest.json lists", "a stray file", run / name, "remove it")
    for name in sorted(listed - present):
        raise _refuse("every file that manifest.json lists", "no such file", run / name, "capture again")
    for name, entry in sorted(manifest["files"].items()):
        path = inside(run, name, str(run / name))
        if path.is_symlink():
            raise _refuse("a file", "a symbolic link", path, "capture again")
        if path.stat().st_size != entry["size"]:
            raise _refuse(f"a file of {entry['size']} bytes", f"{path.stat().st_size} bytes", path, "capture again")
        if not name.startswith("blob/") and sha256_file(path) != entry["sha256"]:
            raise _refuse("the content that manifest.json lists", "another SHA-256", path, "capture again")


def _read_call(path: Path, run: Path, root: Path) -> Call:
    value = read_json(path)
    if not isinstance(value, dict) or set(value) != {"workload", "record"} or not isinstance(value["record"], dict):
        raise _refuse("a call: workload and record", "something else", path, "capture again")
    workload, record = value["workload"], value["record"]
    validation = run / "validation" / path.name
    if not validation.exists():
        raise _refuse("a validated call", "no validation result", path, "run the capture command again")
    record = record | {"replay": read_json(validation)}
    problems: list = schema_errors("capture_record", record, str(path))
    if not problems:
        definition = load_definition(root, record["definition"])
        problems = workload_line_errors(workload_line(definition["name"], workload), definition, str(path))
    if problems:
        raise _refuse(problems[0].expected, problems[0].found, path, "capture again with this version")
    if not record["replay"]["passed"]:
        raise _refuse("calls that replay within tolerance", "one that does not", path, "find the cause first")
    uuid = workload_uuid(definition["name"], workload["inputs"])
    if not uuid == workload["uuid"] == record["workload"] == path.stem:
        raise _refuse(f"workload {uuid}, from its inputs", workload["uuid"], path, "capture again")
    call = Call(definition, workload, record)
    for text, _ in call.paths():
        parts = Path(text).parts
        if parts[:2] != ("blob", definition["name"]) or len(parts) != 3 or not (run / text).is_file():
            raise _refuse(f"tensors in blob/{definition['name']}/ of the run", text, path, "capture again")
    _check_tensors(call, run, path)
    return call


def _check_tensors(call: Call, run: Path, where: Path) -> None:
    """Check shape and dtype of every tensor by its header, and the definition's constraints."""
    axes = const_axes(call.definition) | call.workload["axes"]
    outputs = {name: item["path"] for name, item in call.record["outputs"].items()}
    specs = call.definition["inputs"] | call.definition["outputs"]
    for name, text in (call.input_paths | outputs).items():
        header = read_header(run / text)
        expected = resolve_shape(specs[name], axes), specs[name]["dtype"]
        if (header.shape, header.dtype) != expected:
            raise _refuse(
                f"{name} {expected[0]} {expected[1]}", f"{header.shape} {header.dtype}", where, "capture again"
            )
    names: dict[str, Any] = dict(axes)
    for name, item in call.workload["inputs"].items():
        names[name] = item["value"] if "value" in item else (lambda text=item["path"]: load_tensor(run / text))
    for rule in call.definition.get("constraints") or []:
        try:
            check_constraint(rule, names, str(where))
        except DatasetError as error:
            raise _refuse(error.expected, error.found, where, error.remedy) from error


def plan_copies(calls: list[Call], root: Path, store: str) -> dict[str, BlobPath]:
    """Map run paths to places in the root: tensors that a recipe regenerates to `generated`, others to `store`.

    A tensor that the root's records already name keeps its place, whatever `store` is.
    """
    known = _known_places(root, {call.definition["name"]: call.definition for call in calls})
    places: dict[str, BlobPath] = {}
    for call in calls:
        for text, generated in call.paths():
            blob = BlobPath("generated" if generated else store, call.definition["name"], Path(text).stem)
            places.setdefault(text, known.get((blob.definition, blob.sha256), blob))
    return places


def _known_places(root: Path, definitions: dict[str, dict]) -> dict[tuple[str, str], BlobPath]:
    """Map (definition, hash) to the place of every tensor that the root's records of these definitions name."""
    texts = [path for record in read_captures(root) for path in record_tensors(record).values()]
    for definition in definitions.values():
        for workload in read_workloads(root, definition):
            texts += [item["path"] for item in workload["inputs"].values() if "path" in item]
    blobs = [BlobPath.parse(text, str(root)) for text in texts]
    return {(blob.definition, blob.sha256): blob for blob in blobs}


def check_starter_limits(places: dict[str, BlobPath], run: Path, root: Path) -> None:
    starter = {str(blob): (run / text).stat().st_size for text, blob in places.items() if blob.store == "starter"}
    for name, size in starter.items():
        if size > STARTER_FILE_LIMIT:
            raise _refuse(
                f"starter tensors of at most {STARTER_FILE_LIMIT:,} bytes",
                f"{size:,}",
                name,
                "capture smaller shapes, or import with --store workloads",
            )
    present = {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in blob_files(root)
        if path.is_relative_to(root / "blob" / "starter")
    }
    total = sum((present | starter).values())
    if total > STARTER_TOTAL_LIMIT:
        raise _refuse(
            f"at most {STARTER_TOTAL_LIMIT:,} bytes in blob/starter",
            f"{total:,}",
            root,
            "import fewer or smaller workloads, or use --store workloads",
        )


def copy_checked(source: Path, target: Path, sha256: str) -> bool:
    """Copy and hash in one pass over the bytes; False if `target` already holds them.

    ImportRefused if the content does not have the hash of its name; `target` is untouched then.
    """
    if target.exists() and sha256_file(target) == sha256:
        return False
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK))
    with open(source, "rb", buffering=0) as reader, atomic_writer(target) as writer:
        while size := reader.readinto(block):
            digest.update(block[:size])
            writer.write(block[:size])
        if digest.hexdigest() != sha256:
            raise _refuse(f"content of hash {sha256}", digest.hexdigest(), source, "capture again")
    return True


def copy_tensors(run: Path, root: Path, places: dict[str, BlobPath], jobs: int | None = None) -> Iterator[bool]:
    """Copy every tensor, `jobs` at a time; yield whether each one was new."""
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        futures = [
            pool.submit(copy_checked, run / text, inside(root, str(blob), text), blob.sha256)
            for text, blob in places.items()
        ]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def merge_records(root: Path, calls: list[Call], places: dict[str, BlobPath]) -> int:
    """Add the calls to captures.jsonl and the workload files; return the number of new workloads.

    A workload that is there stays as it is.
    """
    moved = [_moved(call, places) for call in calls]
    known = {record["workload"]: record for record in read_captures(root)}
    write_captures(root, ({call.workload["uuid"]: call.record for call in moved} | known).values())
    new = 0
    for definition in {call.definition["name"]: call.definition for call in moved}.values():
        old = {workload["uuid"]: workload for workload in read_workloads(root, definition)}
        fresh = {
            call.workload["uuid"]: call.workload
            for call in moved
            if call.definition is definition or call.definition["name"] == definition["name"]
        }
        new += len(set(fresh) - set(old))
        write_workloads(root, definition, (fresh | old).values())
    return new


def _moved(call: Call, places: dict[str, BlobPath]) -> Call:
    inputs = {
        name: item | {"path": str(places[item["path"]])} if "path" in item else item
        for name, item in call.workload["inputs"].items()
    }
    groups = {
        group: {name: tensor_reference(places[item["path"]]) for name, item in call.record[group].items()}
        for group in ("outputs", "auxiliary")
    }
    return Call(call.definition, call.workload | {"inputs": inputs}, call.record | groups)


def prepare_root(root: Path) -> None:
    """Remove the temporary files that a killed import left, never a finished one."""
    for folder in ("blob", "workloads"):
        if (root / folder).is_dir():
            remove_leftovers(root / folder)
    for leftover in root.glob(".tmp-*"):
        leftover.unlink()
