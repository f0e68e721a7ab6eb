"""Inside the container: copy finished cases from its own disk to the volume, and back after a restart.

The capture runs on the container's disk, so the engine's open files never lie in the volume. When the
run's manifest lists a new case, its files are copied (hashed, temporary name, fsync, rename), then the
manifest, and the volume is committed. A restart keeps what the volume's manifest lists and discards
everything else.

    captures/<name>/dataset/...      the run, as `capture/run.py` describes it
    captures/<name>/results/...      images or videos
    captures/<name>/state.json       which code captures it
    captures/<name>/inventory.json   sizes and SHA-256 of all files, written last
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference_kernels.capture.importer import copy_checked
from inference_kernels.capture.run import MANIFEST, files_below, read_manifest
from inference_kernels.cloud.spec import INVENTORY, LOG
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import read_json, read_text, remove_leftovers, write_json, write_text
from inference_kernels.core.hashing import hash_files, sha256_file

MEDIA = ("images", "videos")
# The name under which the published commands refer to the first square image.
ALIASES = {"text_to_image_0.png": "square.png"}


class Publisher:
    """`folder` of the volume receives what `work` on the container's disk has finished.

    commit: makes the volume durable.
    """

    def __init__(self, folder: Path, work: Path, commit: Callable[[], None]):
        self.folder, self.work, self.commit = folder, work, commit
        self.published: set[str] = set()
        self.manifest_text = ""

    @property
    def complete(self) -> bool:
        path = self.folder / "dataset"
        return (path / MANIFEST).exists() and read_manifest(path)["complete"]

    def begin(self, state: dict[str, Any]) -> None:
        """Claim the folder for one state of the code; CaptureError if another one has begun the capture."""
        path = self.folder / "state.json"
        found = read_json(path) if path.exists() else state
        if found != state:
            raise CaptureError(
                expected=f"the code it was begun with ({found['code_sha256'][:12]}) and its checkpoint",
                found=state["code_sha256"][:12],
                where=self.folder.name,
                remedy="check out that state of the code, or choose another --name",
            )
        write_json(path, state)

    def restore(self) -> list[str]:
        """Copy the published run back to `work`, without what its manifest does not list; return the finished cases."""
        source, target = self.folder / "dataset", self.work / "dataset"
        remove_leftovers(self.folder)
        if not (source / MANIFEST).exists():
            shutil.rmtree(source, ignore_errors=True)
            return []
        manifest = read_manifest(source)
        self._prune(manifest)
        for name, entry in manifest["files"].items():
            copy_checked(source / name, target / name, entry["sha256"])
        results = self.folder / "results"
        for name in _media(manifest):
            folder = "videos" if name.endswith(".mp4") else "images"
            copy_checked(results / name, self.work / folder / name, sha256_file(results / name))
        write_text(target / MANIFEST, read_text(source / MANIFEST))
        self.published, self.manifest_text = set(manifest["files"]), read_text(source / MANIFEST)
        return list(manifest["cases"])

    def publish(self) -> bool:
        """Copy and commit what is new; False if the manifest says nothing new."""
        path = self.work / "dataset" / MANIFEST
        text = read_text(path) if path.exists() else ""
        if text == self.manifest_text:
            return False
        manifest = read_manifest(path.parent)
        for name, entry in manifest["files"].items():
            if name not in self.published:
                copy_checked(path.parent / name, self.folder / "dataset" / name, entry["sha256"])
                self.published.add(name)
        self._publish_media(manifest)
        write_text(self.folder / "dataset" / MANIFEST, text)
        self._prune(manifest)
        self.manifest_text = text
        self.commit()
        return True

    def _publish_media(self, manifest: dict[str, Any]) -> None:
        for name in _media(manifest):
            source = next(path for path in (self.work / folder / name for folder in MEDIA) if path.exists())
            for target in [name] + ([ALIASES[name]] if name in ALIASES else []):
                copy_checked(source, self.folder / "results" / target, sha256_file(source))

    def _prune(self, manifest: dict[str, Any]) -> None:
        for name in files_below(self.folder / "dataset"):
            if name not in manifest["files"]:
                (self.folder / "dataset" / name).unlink()
                self.published.discard(name)

    def publish_log(self) -> None:
        """Keep the engine's output, also of a failed capture."""
        source = self.work / LOG
        if source.exists():
            shutil.copyfile(source, self.folder / LOG)
            self.commit()

    def take_inventory(self) -> dict[str, Any]:
        """Hash the files in the volume and write the inventory, a capture's last file."""
        skipped = {INVENTORY, "state.json"}
        paths = [self.folder / name for name in files_below(self.folder) if name not in skipped]
        files = {}
        for path, digest in hash_files(paths, os.cpu_count() or 1):
            if isinstance(digest, OSError):
                raise digest
            files[path.relative_to(self.folder).as_posix()] = {"size": path.stat().st_size, "sha256": digest}
        inventory = {
            "name": self.folder.name,
            "state": read_json(self.folder / "state.json"),
            "bytes": sum(entry["size"] for entry in files.values()),
            "files": files,
        }
        write_json(self.folder / INVENTORY, inventory)
        self.commit()
        return inventory


def _media(manifest: dict[str, Any]) -> list[str]:
    return [name for case in manifest["cases"].values() for name in case["images"]]
