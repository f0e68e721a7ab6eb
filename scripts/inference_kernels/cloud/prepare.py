"""Inside the container: fill the volume of a model from pinned revisions; an interrupted preparation is resumed.

downloads.json            repository -> {"revision", "files": {path: {"size", "sha256"}}}, after each file
<folder>.checkpoint.json  what the capture needs; written last, so it says that the checkpoint is whole
"""

import fnmatch
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference_kernels.capture.engine import Report
from inference_kernels.cloud.spec import CHECKPOINT, DOWNLOADS
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import read_json, write_json
from inference_kernels.core.hashing import sha256_file
from inference_kernels.models.ltx.prepare import CONVERTER_COMMIT
from inference_kernels.models.model import Repository
from inference_kernels.models.registry import PUBLISHED

DIFFUSERS = "https://github.com/huggingface/diffusers"


def prepare(job: dict[str, Any], commit: Callable[[], None], report: Report) -> None:
    """Do what is left of a job with kind, seeded, folder, model, repository, manifest, work and revision."""
    volume, kind = Path(job["model"]), job["kind"]
    target = volume / job["folder"]
    if job["seeded"]:
        run(
            [
                sys.executable,
                f"{job['repository']}/scripts/make_seeded_checkpoint.py",
                "--kind",
                kind,
                "--output",
                str(target),
            ]
        )
        model = {"class": "seeded"}
    else:
        model = published(job, volume, target, commit, report)
    write_json(volume / f"{job['folder']}.{CHECKPOINT}", {"kind": kind, "folder": job["folder"]} | model)
    commit()


def published(
    job: dict[str, Any], volume: Path, target: Path, commit: Callable[[], None], report: Report
) -> dict[str, Any]:
    """Download the published checkpoint and convert it if necessary; return what its marker says of it."""
    model = PUBLISHED[job["kind"]]
    first, revision = model.repositories[0].id, ""
    for repository in model.repositories:
        pinned = job["revision"] if repository.id == first and job["revision"] else repository.revision
        place = volume / "distribution" / repository.folder if model.converted else target
        found = download(repository, pinned, place, volume / DOWNLOADS, commit, report)
        revision = found if repository.id == first else revision
    if model.converted:
        convert(job, volume, target)
    return {"class": "published", "model_id": first, "revision": revision}


def download(
    repository: Repository, pinned: str | None, place: Path, ledger: Path, commit: Callable[[], None], report: Report
) -> str:
    """Fetch the files that the ledger does not list; return the revision.

    Each file is checked against the Hub's size and, if it is large, its hash.
    """
    from huggingface_hub import HfApi, hf_hub_download

    state = read_json(ledger) if ledger.exists() else {}
    known = state.get(repository.id, {}).get("revision")
    if known and pinned and known != pinned:
        raise CaptureError(
            expected=f"revision {known}, which the volume holds",
            found=pinned,
            where=repository.id,
            remedy="use another volume, or pass that revision",
        )
    info = HfApi().model_info(repository.id, revision=known or pinned, files_metadata=True)
    entry = state.setdefault(repository.id, {"revision": info.sha, "files": {}})
    write_json(ledger, state)
    wanted = [
        item
        for item in sorted(info.siblings, key=lambda item: item.rfilename)
        if any(fnmatch.fnmatch(item.rfilename, pattern) for pattern in repository.patterns)
    ]
    for number, item in enumerate(wanted, 1):
        path = place / item.rfilename
        if item.rfilename in entry["files"] and path.exists():
            continue
        report(f"{repository.id}: {number}/{len(wanted)} {item.rfilename}")
        hf_hub_download(repository.id, item.rfilename, revision=info.sha, local_dir=str(place))
        entry["files"][item.rfilename] = check_download(path, item)
        write_json(ledger, state)
        commit()
    return info.sha


def check_download(path: Path, item: Any) -> dict[str, Any]:
    """Return size and SHA-256 of a downloaded file; CaptureError, and no file, if they are not the Hub's."""
    size, digest = path.stat().st_size, sha256_file(path)
    expected = item.lfs.sha256 if item.lfs else digest
    if (size, digest) != (item.size, expected):
        path.unlink()
        raise CaptureError(
            expected=f"{item.size} bytes, SHA-256 {expected}",
            found=f"{size} bytes, {digest}",
            where=item.rfilename,
            remedy="run the same command again: it is fetched anew",
        )
    return {"size": size, "sha256": digest}


def convert(job: dict[str, Any], volume: Path, target: Path) -> None:
    """Convert LTX-2.5 with the official converter at its pinned commit, checked out on the container's disk."""
    checkout = Path(job["work"]) / "diffusers"
    run(["git", "init", "--quiet", str(checkout)])
    run(["git", "-C", str(checkout), "fetch", "--quiet", "--depth", "1", DIFFUSERS, CONVERTER_COMMIT])
    run(["git", "-C", str(checkout), "checkout", "--quiet", CONVERTER_COMMIT])
    run(
        [
            sys.executable,
            f"{job['repository']}/scripts/prepare_ltx.py",
            "--distribution",
            str(volume / "distribution"),
            "--manifest",
            job["manifest"],
            "--diffusers",
            str(checkout),
            "--output",
            str(target),
        ]
    )


def run(command: list[str]) -> None:
    code = subprocess.run(command).returncode
    if code:
        raise CaptureError(
            expected="exit code 0",
            found=f"{code}",
            where=" ".join(command[:4]),
            remedy="see its output above; the same command goes on",
        )


def read_checkpoint(job: dict[str, Any]) -> dict[str, Any]:
    """Read what `prepare` wrote; CaptureError if it never finished."""
    path = Path(job["model"]) / f"{job['folder']}.{CHECKPOINT}"
    if not path.exists():
        raise CaptureError(
            expected=f"a complete checkpoint {job['folder']} in the volume",
            found="none",
            where=path.name,
            remedy="run the command with --prepare-model first",
        )
    return read_json(path)
