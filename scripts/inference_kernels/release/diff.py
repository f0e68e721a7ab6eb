"""Compare two releases of the dataset, kind by kind (KINDS), read from a folder or a git revision.

Workloads are matched by UUID, which follows from their content, so a regenerated workload counts as one
removed and one added; `shape` rows then say whether a runtime shape of the definition came or went with it.
"""

import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import LEFTOVER, canonical_json, lines, parse_json
from inference_kernels.core.records import CLASSES

# What a comparison reads; tensors are compared by the hashes in their paths.
PARTS = ("captures.jsonl", "definitions", "solutions", "tasks", "workloads")
SUFFIXES = (".json", ".jsonl")
KINDS = ("definition", "tolerance", "task", "solution", "workload", "record", "tensor", "shape")
Things = dict[tuple[str, str], Any]


@dataclass(frozen=True)
class Change:
    """One difference. change: added | removed | changed; detail: the changed fields, or a description."""

    kind: str
    definition: str
    name: str
    change: str
    detail: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the fields by name."""
        return asdict(self)


def compare_releases(old: dict[str, Things], new: dict[str, Things]) -> list[Change]:
    """List all differences of two releases as `read_release` returns them."""
    return [change for kind in KINDS for change in _differences(kind, old[kind], new[kind])]


def class_counts(release: dict[str, Things]) -> dict[str, int]:
    """Count the workloads with a record, by class."""
    return {name: sum(row.get("class") == name for row in release["record"].values()) for name in CLASSES}


def read_release(files: dict[str, bytes], name: str) -> dict[str, Things]:
    """Return kind -> {(definition, name): value} from bytes by path; tensors and shapes have no value.

    The files are not checked against the current schemas, which an older release need not meet. SchemaError,
    with `name` and the place, for what cannot be compared.
    """
    things: dict[str, Things] = {kind: {} for kind in KINDS}
    for path in sorted(files):
        top, where = Path(path).parts[0], f"{name}: {path}"
        if path == "captures.jsonl":
            for place, row in _rows(files[path], where):
                _add_record(things, row, place)
        elif top == "workloads" and path.endswith(".jsonl"):
            for place, row in _rows(files[path], where):
                _add_workload(things, row, place)
        elif path.endswith(".json") and top in ("definitions", "tasks", "solutions"):
            _add_document(things, top, parse_json(_text(files[path], where), where), where)
    return things


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _malformed(where, str(error)) from error


def _rows(content: bytes, where: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines(_text(content, where)), 1):
        yield f"{where}:{number}", parse_json(line, f"{where}:{number}")


def _malformed(where: str, found: str) -> SchemaError:
    return SchemaError(
        expected="the form of a release",
        found=found,
        where=where,
        remedy="check that release with check_workload_inputs.py",
    )


def _add_document(things: dict[str, Things], top: str, value: Any, where: str) -> None:
    try:
        if top == "definitions":
            things["definition"][value["name"], ""] = value
        elif top == "solutions":
            things["solution"][value["definition"], value["name"]] = value
        else:
            things["tolerance"][value["definition"], ""] = value["tolerance"]
            rest = {key: item for key, item in value.items() if key != "tolerance"}
            things["task"][value["definition"], ""] = rest
    except (KeyError, TypeError) as error:
        raise _malformed(where, repr(error)) from error


def _add_record(things: dict[str, Things], row: Any, where: str) -> None:
    try:
        definition = row["definition"]
        things["record"][definition, row["workload"]] = row
        for group in ("outputs", "auxiliary"):
            _add_tensors(things, definition, row[group].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(where, repr(error)) from error


def _add_workload(things: dict[str, Things], row: Any, where: str) -> None:
    try:
        definition, workload = row["definition"], row["workload"]
        things["workload"][definition, workload["uuid"]] = workload
        shape = ", ".join(f"{axis}={size}" for axis, size in sorted(workload["axes"].items()))
        things["shape"][definition, shape] = None
        _add_tensors(things, definition, [item for item in workload["inputs"].values() if "path" in item])
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(where, repr(error)) from error


def _add_tensors(things: dict[str, Things], definition: str, items: Any) -> None:
    for item in items:
        things["tensor"][definition, Path(item["path"]).stem] = None


def _differences(kind: str, old: Things, new: Things) -> Iterator[Change]:
    for definition, name in sorted(set(old) | set(new)):
        key = (definition, name)
        if key not in old:
            yield Change(kind, definition, name, "added", _words(kind, new[key]))
        elif key not in new:
            yield Change(kind, definition, name, "removed", _words(kind, old[key]))
        elif canonical_json(old[key]) != canonical_json(new[key]):
            yield Change(kind, definition, name, "changed", "; ".join(_fields(kind, old[key], new[key])))


def _words(kind: str, value: Any) -> str:
    """Describe what came or went in a few words, or not at all where its name suffices."""
    if kind == "tolerance":
        return canonical_json(value)
    if kind == "workload":
        return ", ".join(f"{axis}={size}" for axis, size in sorted(value["axes"].items()))
    return value.get("class", "") if kind == "record" else ""


def _fields(kind: str, old: dict, new: dict) -> list[str]:
    """List the keys that differ; of a tolerance, whose values decide what passes, with both values."""
    keys = [key for key in sorted(set(old) | set(new)) if canonical_json(old.get(key)) != canonical_json(new.get(key))]
    if kind == "tolerance":
        return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys]
    return [part for key in keys for part in _parts(key, old.get(key), new.get(key))]


def _parts(key: str, old: Any, new: Any) -> list[str]:
    """Name `inputs.q` instead of `inputs` where only some entries of an object differ."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [key]
    names = [
        name for name in sorted(set(old) | set(new)) if canonical_json(old.get(name)) != canonical_json(new.get(name))
    ]
    return [f"{key}.{name}" for name in names]


def counts(changes: list[Change]) -> dict[str, dict[str, int]]:
    """Count the changes: kind -> {added, removed, changed}, for every kind."""
    result = {kind: {"added": 0, "removed": 0, "changed": 0} for kind in KINDS}
    for change in changes:
        result[change.kind][change.change] += 1
    return result


def from_folder(root: Path) -> dict[str, bytes]:
    """Read the compared files below a dataset root; SchemaError without definitions."""
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
    """Read the compared files of a revision with `git archive`; SchemaError for an unknown revision."""
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
