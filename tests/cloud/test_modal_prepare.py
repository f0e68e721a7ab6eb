"""A model's volume, filled from a fake Hub that breaks off and lies."""

import hashlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from inference_kernels.cloud import prepare
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.model import Repository

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "extra/notes.bin": b"not wanted"}
REVISION = "a" * 40
REPOSITORY = Repository("toy/model", patterns=("config.json", "*.safetensors"))


class Hub:
    """huggingface_hub as far as it is used. faults: file -> contents of the next downloads, or an exception."""

    def __init__(self):
        self.calls, self.faults, self.revision = [], {}, REVISION

    def model_info(self, repo_id, *, revision=None, files_metadata=False):
        self.calls.append(("model_info", (repo_id,), {"revision": revision, "files_metadata": files_metadata}))
        large = {"model.safetensors"}
        return SimpleNamespace(
            sha=revision or self.revision,
            siblings=[
                SimpleNamespace(
                    rfilename=name,
                    size=len(data),
                    lfs=SimpleNamespace(sha256=hashlib.sha256(data).hexdigest()) if name in large else None,
                )
                for name, data in FILES.items()
            ],
        )

    def download(self, repo_id, filename, *, revision, local_dir):
        self.calls.append(("hf_hub_download", (repo_id, filename), {"revision": revision, "local_dir": local_dir}))
        queue = self.faults.get(filename, [])
        data = queue.pop(0) if queue else FILES[filename]
        if isinstance(data, BaseException):
            raise data
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    @property
    def downloaded(self):
        return [arguments[1] for name, arguments, _ in self.calls if name == "hf_hub_download"]


@pytest.fixture
def hub(monkeypatch):
    hub, module = Hub(), ModuleType("huggingface_hub")
    module.HfApi, module.hf_hub_download = lambda: hub, hub.download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return hub


def download(hub, folder: Path, pinned=None) -> tuple[str, int]:
    """(revision, number of commits)"""
    commits = []
    revision = prepare.download(
        REPOSITORY, pinned, folder / "model", folder / "downloads.json", lambda: commits.append(1), [].append
    )
    return revision, len(commits)


def test_the_first_download_pins_the_revision_and_commits_each_file(hub, tmp_path):
    assert download(hub, tmp_path) == (REVISION, 2)
    ledger = json.loads((tmp_path / "downloads.json").read_text())["toy/model"]
    assert ledger["revision"] == REVISION and set(ledger["files"]) == {"config.json", "model.safetensors"}
    hub.revision = "b" * 40
    assert download(hub, tmp_path) == (REVISION, 0) and len(hub.downloaded) == 2
    with pytest.raises(CaptureError, match="which the volume holds"):
        download(hub, tmp_path, "b" * 40)


def test_a_download_goes_on_after_the_last_good_file(hub, tmp_path):
    hub.faults["model.safetensors"] = [ConnectionError("lost"), b"weight!"]
    with pytest.raises(ConnectionError):
        download(hub, tmp_path)
    with pytest.raises(CaptureError, match="SHA-256"):
        download(hub, tmp_path)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert download(hub, tmp_path) == (REVISION, 1)
    assert hub.downloaded == ["config.json"] + ["model.safetensors"] * 3


def job(tmp_path, kind, **changes):
    return {
        "kind": kind,
        "seeded": False,
        "folder": "toy",
        "model": str(tmp_path / "model"),
        "repository": str(tmp_path / "code"),
        "manifest": "/m.json",
        "work": str(tmp_path / "work"),
        "revision": None,
    } | changes


def test_the_marker_comes_last(hub, tmp_path):
    (tmp_path / "model").mkdir()
    hub.faults["model.safetensors"] = [ConnectionError("lost")]
    work = job(tmp_path, "image")
    with pytest.raises(ConnectionError):
        prepare.prepare(work, list, [].append)
    with pytest.raises(CaptureError, match="--prepare-model first"):
        prepare.read_checkpoint(work)
    prepare.prepare(work, list, [].append)
    assert prepare.read_checkpoint(work) == {
        "kind": "image",
        "folder": "toy",
        "class": "published",
        "model_id": "Qwen/Qwen-Image-2.1-Turbo",
        "revision": REVISION,
    }


def test_ltx_is_downloaded_beside_and_converted_by_the_pinned_commit(hub, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(prepare, "run", commands.append)
    (tmp_path / "model").mkdir()
    prepare.prepare(job(tmp_path, "ltx25", revision="c" * 40), list, [].append)
    assert prepare.read_checkpoint(job(tmp_path, "ltx25"))["revision"] == "c" * 40
    assert (tmp_path / "model" / "distribution" / "original" / "model.safetensors").exists()
    assert prepare.CONVERTER_COMMIT in commands[1] and commands[1][-2].endswith("huggingface/diffusers")
    assert commands[3][1].endswith("scripts/prepare_ltx.py") and "/m.json" in commands[3]
    from helpers.commands import process

    flags = [text for text in commands[3][2:] if text.startswith("--")]
    usage = process("prepare_ltx.py", "--help").out
    assert all(flag in usage for flag in flags)


def test_a_failing_step_is_named():
    with pytest.raises(CaptureError, match="exit code 0; found 7"):
        prepare.run([sys.executable, "-c", "raise SystemExit(7)"])


def test_the_installed_hub_client_takes_every_call(hub, tmp_path):
    download(hub, tmp_path)
    calls = list(hub.calls)
    sys.modules.pop("huggingface_hub")
    client = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    for name, arguments, keywords in calls:
        owner = client.HfApi if name == "model_info" else client
        bound = ("self",) if name == "model_info" else ()
        inspect.signature(getattr(owner, name)).bind(*bound, *arguments, **keywords)
