"""Keep a capture run on disk. Standard library only; the launcher of a capture owns it.

    manifest.json       written last at every step; only what it lists belongs to the run
    request.json        the request being served, read by the hooks; not part of the run
    blob/<definition>/<sha256>.safetensors      tensors
    calls/<uuid>.json                           one captured call: {"workload": ..., "record": ...}
    counts/<case>.json                          how often each operator was called in a case
    errors/<n>.json                             exceptions inside hooks; one is enough to fail the run
    validation/<uuid>.json                      the replay of one call, written by `capture/validate.py`

A case counts once `finish_case` has listed its files. On resume everything unlisted is deleted, so a killed case
is captured again from the start, and a killed run holds nothing that the importer would accept.
"""

import os
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import canonical_json, parse_json, read_json, read_text, write_json
from inference_kernels.core.hashing import sha256_file

FORMAT, VERSION = "inference-kernels capture run", 1
MANIFEST, REQUEST = "manifest.json", "request.json"
MANIFEST_KEYS = {"format", "version", "complete", "settings", "cases", "files"}


class RunFolder:
    """An open capture run; `manifest` is the one on disk."""

    def __init__(self, root: Path, manifest: dict[str, Any]):
        self.root, self.manifest = root, manifest

    @classmethod
    def open(cls, root: Path, settings: dict[str, Any]) -> "RunFolder":
        """Start a run in a new or empty folder, or open one with equal settings, to resume it or to read it.

        CaptureError if the folder holds something else or other settings.
        """
        if (root / MANIFEST).exists():
            run = cls(root, read_manifest(root))
            run._require_same(settings)
            run._discard_unlisted()
            return run
        if root.exists() and any(root.iterdir()):
            raise CaptureError(
                expected="a new or empty folder, or a run with its manifest.json",
                found=f"other files, such as {next(root.iterdir()).name}",
                where=str(root),
                remedy="choose another --output-root, or remove the folder",
            )
        root.mkdir(parents=True, exist_ok=True)
        run = cls(
            root,
            {"format": FORMAT, "version": VERSION, "complete": False, "settings": settings, "cases": {}, "files": {}},
        )
        run._save()
        return run

    @property
    def settings(self) -> dict[str, Any]:
        return self.manifest["settings"]

    @property
    def finished_cases(self) -> list[str]:
        return list(self.manifest["cases"])

    def begin_case(self, case: str, request: dict[str, Any]) -> None:
        """Tell the hooks which request comes next. `request` goes into every record of the case.

        CaptureError if the run is complete: its validation would not cover what comes now.
        """
        if self.manifest["complete"]:
            raise CaptureError(
                expected="a run that is not complete",
                found=f"a new case {case}",
                where=str(self.root),
                remedy="import the run, or capture into another folder",
            )
        write_json(self.root / REQUEST, {"case": case} | request)

    def finish_case(self, case: str, images: list[str], seconds: float) -> None:
        """List the files of the case; CaptureError if a hook failed."""
        self.raise_hook_errors()
        counts = self.root / "counts" / f"{case}.json"
        self.manifest["cases"][case] = {
            "images": images,
            "seconds": round(seconds, 3),
            "counts": read_json(counts) if counts.exists() else {},
        }
        (self.root / REQUEST).unlink(missing_ok=True)
        self._list_new_files()
        self._save()

    def raise_hook_errors(self) -> None:
        errors = sorted((self.root / "errors").glob("*.json"))
        if errors:
            first = read_json(errors[0])
            raise CaptureError(
                expected="hooks that run",
                found=first["message"],
                where=first["where"],
                remedy=f"see {errors[0]} for the traceback; correct the hook and resume",
            )

    def operator_counts(self) -> dict[str, int]:
        """Count the calls seen per definition over all finished cases."""
        totals: dict[str, int] = {}
        for case in self.manifest["cases"].values():
            for name, count in case["counts"].items():
                totals[name] = totals.get(name, 0) + count
        return totals

    def require_operators(self, expected: list[str]) -> None:
        """CaptureError if an expected definition has no captured call; it names every such definition."""
        counts = self.operator_counts()
        captured = {read_json(path)["record"]["definition"] for path in self.calls()}
        missing = [f"{name} ({counts.get(name, 0)} calls seen)" for name in expected if name not in captured]
        if missing:
            raise CaptureError(
                expected="at least one captured call of every expected operator",
                found=f"none of {', '.join(missing)}",
                where=str(self.root),
                remedy="check the hooks and the steps and layers that are captured",
            )

    def calls(self) -> list[Path]:
        return sorted((self.root / "calls").glob("*.json"))

    def complete(self) -> None:
        """List the remaining files (validation results) and mark the run complete, the last write of a run."""
        self._list_new_files()
        self.manifest["complete"] = True
        self._save()

    def _require_same(self, settings: dict[str, Any]) -> None:
        for key in sorted(set(settings) | set(self.settings)):
            old, new = self.settings.get(key), settings.get(key)
            if canonical_json(old) != canonical_json(new):
                raise CaptureError(
                    expected=f"the settings of the run that is resumed ({key}: {old})",
                    found=f"{new}",
                    where=str(self.root / MANIFEST),
                    remedy="use the same command, or another --output-root",
                )

    def _discard_unlisted(self) -> None:
        for relative in unlisted_files(self.root, self.manifest):
            (self.root / relative).unlink()

    def _list_new_files(self) -> None:
        for relative in unlisted_files(self.root, self.manifest):
            path = self.root / relative
            self.manifest["files"][relative] = {"size": path.stat().st_size, "sha256": sha256_file(path)}

    def _save(self) -> None:
        write_json(self.root / MANIFEST, self.manifest)


def read_manifest(root: Path) -> dict[str, Any]:
    """Read the manifest of a run; CaptureError if it is not one of this format and version."""
    path = root / MANIFEST
    manifest = parse_json(read_text(path), str(path))
    found = (manifest.get("format"), manifest.get("version")) if isinstance(manifest, dict) else None
    if found != (FORMAT, VERSION):
        raise CaptureError(
            expected=f"{FORMAT}, version {VERSION}",
            found=str(found),
            where=str(path),
            remedy="pass the folder of a capture run of this version",
        )
    if not set(manifest) >= MANIFEST_KEYS:
        raise CaptureError(
            expected=f"the keys {sorted(MANIFEST_KEYS)}",
            found=f"{sorted(manifest)}",
            where=str(path),
            remedy="capture again",
        )
    return manifest


def files_below(root: Path) -> list[str]:
    """Return the relative POSIX paths of all files below `root` (links too) but the manifest, sorted."""
    found = [Path(folder, name).relative_to(root).as_posix() for folder, _, names in os.walk(root) for name in names]
    return sorted(name for name in found if name != MANIFEST)


def unlisted_files(root: Path, manifest: dict[str, Any]) -> list[str]:
    return [name for name in files_below(root) if name not in manifest["files"]]
