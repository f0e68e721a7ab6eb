"""Reduce a full capture to the published set by rules that say what is dropped and why.

retired definitions       dropped with all that belongs to them; the reason is in their description
dense GEMM rows M < 4096  dropped in class `published`, where they are launches of 11 to 27 microseconds;
                          seeded captures keep their small rows: the others do not fit in a repository
mask inputs               dropped if the record says that every position was visible; otherwise refused
records and tensors       dropped if no workload needs them; tensors stored twice are counted, not touched
"""

import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import definition_files, load_definition, read_definition
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_json, read_jsonl, write_text
from inference_kernels.core.layout import blob_files, workload_file
from inference_kernels.core.records import read_captures, record_tensors, workload_uuid, write_captures, write_workloads
from inference_kernels.core.tasks import task_text
from inference_kernels.release.guard import require_plain_folders, require_share, require_workload_files

GEMM_OP_TYPE, GEMM_ROWS, GEMM_ROWS_CLASS = "gemm", 4096, "published"
MASK = "mask"
KINDS = ("definition", "workload", "record", "tensor")
REASON = re.compile(r"Retired: (.+?)\.(?:\s|$)")


@dataclass(frozen=True)
class Dropped:
    """One thing to remove. kind: one of KINDS; item: name, UUID or path."""

    kind: str
    definition: str
    item: str
    reason: str
    bytes: int = 0


@dataclass
class CurationPlan:
    """What curation would change below `root`; `apply` carries it out."""

    root: Path
    dropped: list[Dropped] = field(default_factory=list)
    masks: dict[str, str] = field(default_factory=dict)
    workloads: dict[str, list[dict]] = field(default_factory=dict)
    records: list[dict] = field(default_factory=list)
    tasks: dict[Path, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    duplicates: dict[str, int] = field(default_factory=dict)

    def of(self, kind: str) -> list[Dropped]:
        """List what is dropped of one kind."""
        return [item for item in self.dropped if item.kind == kind]

    def summary(self) -> dict[str, Any]:
        """Count what is dropped, changed and kept."""
        counts = {f"{kind}s_dropped": len(self.of(kind)) for kind in KINDS}
        return counts | {
            "bytes_dropped": sum(item.bytes for item in self.dropped),
            "masks_dropped": len(self.masks),
            "tasks_changed": len(self.tasks),
            "workloads_kept": sum(map(len, self.workloads.values())),
            **self.duplicates,
        }

    def to_json(self) -> dict[str, Any]:
        """List every drop and mask, with the summary."""
        dropped = [asdict(item) for item in self.dropped]
        return {"dropped": dropped, "masks": self.masks, "summary": self.summary()}

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to do."""
        return not (self.dropped or self.masks or self.tasks)


def retired_reasons(root: Path) -> dict[str, str]:
    """Read why each definition below `root`/retired/definitions was retired, from its description."""
    reasons = {}
    for path in definition_files(root, "retired/definitions"):
        definition = read_definition(path)
        match = REASON.match(definition["description"])
        if not match:
            raise SchemaError(
                expected="a description that begins with `Retired: <reason>.`",
                found=definition["description"][:60],
                where=str(path),
                remedy="state the reason there",
            )
        reasons[definition["name"]] = match[1]
    return reasons


def make_plan(root: Path, retired: dict[str, str]) -> CurationPlan:
    """Apply every rule to the records below `root`; change nothing.

    retired: from `retired_reasons`. SchemaError for a workload of an unknown definition or without a record,
    and for a mask that hides something.
    """
    if not (root / "definitions").is_dir():
        raise SchemaError(
            expected="a dataset root with definitions/",
            found="none",
            where=str(root),
            remedy="pass the root of the capture",
        )
    require_plain_folders(root)
    plan = CurationPlan(root)
    records = {record["workload"]: record for record in read_captures(root)}
    kept = {}
    for path in sorted((root / "workloads").glob("*/*.jsonl")):
        workloads = [row["workload"] for _, row in read_jsonl(path)]
        if path.stem in retired:
            reason = f"retired: {retired[path.stem]}"
            plan.files.append(path)
            plan.dropped += [Dropped("workload", path.stem, item["uuid"], reason) for item in workloads]
        else:
            kept |= _definition_workloads(plan, load_definition(root, path.stem), workloads, records)
    require_workload_files(root, records.values(), set(plan.workloads) | set(retired))
    plan.records = list(kept.values())
    plan.dropped += [
        Dropped("record", record["definition"], uuid, "its workload is not in the set")
        for uuid, record in records.items()
        if uuid not in kept and uuid not in plan.masks
    ]
    _retired_files(plan, retired)
    _task_changes(plan, retired)
    _tensors(plan)
    return plan


def _definition_workloads(
    plan: CurationPlan, definition: dict, workloads: list[dict], records: dict[str, dict]
) -> dict[str, dict]:
    """Sort the workloads of one definition into kept and dropped; return the records of the kept by UUID."""
    name, stay, kept = definition["name"], {}, {}
    for workload in workloads:
        uuid = workload["uuid"]
        if uuid not in records:
            raise SchemaError(
                expected="a record of every workload",
                found="none in captures.jsonl",
                where=f"{name} {uuid}",
                remedy="import its capture run again",
            )
        record = records[uuid]
        reason = small_rows(definition, workload, record)
        if reason:
            plan.dropped.append(Dropped("workload", name, uuid, reason))
            continue
        if MASK in workload["inputs"] and definition["op_type"] == "dense_attention":
            workload, record = _without_mask(definition, workload, record)
            plan.masks[uuid] = workload["uuid"]
            # The same call may also have been captured without a mask: that workload and its record stay.
            stay.setdefault(workload["uuid"], workload)
            kept.setdefault(workload["uuid"], record)
            continue
        stay[uuid], kept[uuid] = workload, record
    plan.workloads[name] = list(stay.values())
    return kept


def small_rows(definition: dict, workload: dict, record: dict) -> str:
    """Say why the dense GEMM rule drops the workload, or return an empty string."""
    if definition["op_type"] != GEMM_OP_TYPE or record["class"] != GEMM_ROWS_CLASS:
        return ""
    return f"M < {GEMM_ROWS}" if workload["axes"]["M"] < GEMM_ROWS else ""


def _without_mask(definition: dict, workload: dict, record: dict) -> tuple[dict, dict]:
    """Return workload and record without the mask, under the workload's new UUID."""
    where = f"{definition['name']} {workload['uuid']}"
    figures = record["statistics"].get(MASK) or {}
    if figures.get("min") != 1:
        raise SchemaError(
            expected="a mask recorded as visible everywhere",
            where=where,
            found=str(figures or "no statistics"),
            remedy="such a call cannot be published: remove its workload",
        )
    if MASK in definition["inputs"]:
        raise SchemaError(
            expected="a definition without mask",
            found="an input mask",
            where=definition["name"],
            remedy="put the curated definition in its place first",
        )
    inputs = {name: item for name, item in workload["inputs"].items() if name != MASK}
    uuid = workload_uuid(definition["name"], inputs)
    note = "mask: visible everywhere, dropped"
    statistics = {name: item for name, item in record["statistics"].items() if name != MASK}
    return workload | {"inputs": inputs, "uuid": uuid}, record | {
        "workload": uuid,
        "adaptations": record["adaptations"] + [note],
        "statistics": statistics,
    }


def _retired_files(plan: CurationPlan, retired: dict[str, str]) -> None:
    """Plan to remove definition, reference, task and solutions of every retired definition still in place.

    Sources go before the JSON file that leads to them, so that a killed run leaves none behind.
    """
    for path in definition_files(plan.root):
        if path.stem in retired:
            plan.dropped.append(Dropped("definition", path.stem, path.stem, f"retired: {retired[path.stem]}"))
            plan.files += [path.with_suffix(".py"), path]
    plan.files += [path for path in sorted((plan.root / "tasks").glob("*.json")) if path.stem in retired]
    for path in sorted((plan.root / "solutions").glob("*/*.json")):
        if read_json(path)["definition"] in retired:
            sources = [file for file in sorted(path.with_suffix("").rglob("*")) if file.is_file()]
            plan.files += [*sources, path]
    plan.files = [path for path in plan.files if path.exists()]


def _task_changes(plan: CurationPlan, retired: dict[str, str]) -> None:
    """Remove lost UUIDs from the dev lists; a workload that lost its mask stays under its new UUID."""
    for path in sorted((plan.root / "tasks").glob("*.json")):
        if path.stem in retired:
            continue
        task = read_json(path)
        known = {workload["uuid"] for workload in plan.workloads.get(path.stem, [])}
        left = [plan.masks.get(uuid, uuid) for uuid in task["dev"] if plan.masks.get(uuid, uuid) in known]
        if left != task["dev"]:
            plan.tasks[path] = task_text(task | {"dev": left})


def _tensors(plan: CurationPlan) -> None:
    """Plan to remove blobs that no kept workload or record names; count kept paths that hold the same bytes."""
    named = {
        item["path"]
        for workloads in plan.workloads.values()
        for workload in workloads
        for item in workload["inputs"].values()
        if "path" in item
    }
    named |= {path for record in plan.records for path in record_tensors(record).values()}
    for path in blob_files(plan.root):
        text = path.relative_to(plan.root).as_posix()
        if text not in named:
            plan.dropped.append(
                Dropped("tensor", path.parent.name, text, "nothing references it", path.lstat().st_size)
            )
    snapshots = Counter(Path(text).stem for text in named)
    plan.duplicates = {
        "tensor_paths": len(named),
        "unique_tensors": len(snapshots),
        "duplicate_paths": len(named) - len(snapshots),
    }


def refuse_large(plan: CurationPlan) -> None:
    """SchemaError if the plan drops more of the records or tensors below its root than the rules explain."""
    require_share(plan, len(read_captures(plan.root)), len(blob_files(plan.root)))


def apply(plan: CurationPlan) -> None:
    """Carry the plan out. A file changes at once or not at all; after a kill, a new plan holds what is left.

    Records are written before the workloads that need them and removed after those that needed them.
    """
    root = plan.root
    require_plain_folders(root)
    if plan.masks:
        every = {record["workload"]: record for record in [*read_captures(root), *plan.records]}
        write_captures(root, every.values())
    for name in plan.workloads:
        if any(item.definition == name for item in plan.of("workload")) or plan.masks:
            _write_workloads(root, load_definition(root, name), plan.workloads[name])
    for path in plan.files:
        if path.is_relative_to(root / "workloads"):
            path.unlink()
    if plan.of("record") or plan.masks:
        write_captures(root, plan.records)
    for path, text in plan.tasks.items():
        write_text(path, text)
    for path in plan.files:
        path.unlink(missing_ok=True)
    for name, left in plan.workloads.items():
        if not left:
            workload_file(root, load_definition(root, name)).unlink(missing_ok=True)
    for item in plan.of("tensor"):
        (root / item.item).unlink(missing_ok=True)
    _remove_empty(root)


def _write_workloads(root: Path, definition: dict, workloads: list[dict]) -> None:
    if workloads:
        write_workloads(root, definition, workloads)
    else:  # empty until its records are gone: without the file they would count as records of a lost one
        write_text(workload_file(root, definition), "")


def _remove_empty(root: Path) -> None:
    """Remove empty folders below those that curation removes files from."""
    for top in ("blob", "workloads", "definitions", "solutions"):
        for folder in sorted((root / top).rglob("*"), reverse=True):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()
