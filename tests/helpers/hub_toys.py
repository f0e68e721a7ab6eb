"""Fixtures: a fake Hub and a captured toy checkout; retries that do not wait."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from helpers.hub_fake import FakeHub, sha256
from helpers.toy import NAME, add_definition, captured_run, import_run, toy_root
from inference_kernels.hub.files import local_files
from inference_kernels.hub.retry import Patience

README = "# Toy\n\nTwo definitions.\n"
OTHER = "toy_gather_other"


class Waits:
    """A patience that records its waits instead of waiting."""

    def __init__(self, attempts: int = 4):
        self.seconds: list[float] = []
        self.patience = Patience(attempts=attempts, sleep=self.seconds.append)
        self.told: list[str] = []


@pytest.fixture
def hub(monkeypatch) -> Iterator[FakeHub]:
    """Start a fake Hub and point the library to it, here and in child processes. It has no Xet storage."""
    server = FakeHub()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield server
    close_session()  # a later server may get the same port
    server.stop()


@pytest.fixture(scope="session")
def captured(tmp_path_factory) -> Path:
    """Capture and import four workloads of two definitions that see the same tensors."""
    folder = tmp_path_factory.mktemp("hub")
    root = toy_root(folder / "dataset")
    add_definition(root, OTHER)
    captured_run(folder / "run", root, names=(NAME, OTHER))
    import_run(folder / "run", root, "workloads")
    write(root, "README.md", README)
    write(root, "scripts/empty/__init__.py", b"")
    return root


@pytest.fixture
def checkout(captured, tmp_path) -> Path:
    """Copy the captured checkout for a test to change."""
    return Path(shutil.copytree(captured, tmp_path / "checkout"))


def write(root: Path, path: str, content: bytes | str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content.encode() if isinstance(content, str) else content)


def pointer(content: bytes) -> str:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(content)}\nsize {len(content)}\n"


def as_pointers(root: Path) -> dict[str, bytes]:
    """Replace every large tensor by its pointer; return their contents by path."""
    held = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / "blob" / "workloads").rglob("*.safetensors"))
    }
    for path, content in held.items():
        write(root, path, pointer(content))
    return held


def published(hub: FakeHub, root: Path) -> None:
    """Put the checkout's files on the Hub as a publication would."""
    files = {item.path: item.source.read_bytes() for item in local_files(root)}
    hub.put(files | {"README.md": b"---\n---\n# Toy\n"})
