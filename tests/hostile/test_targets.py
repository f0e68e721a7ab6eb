"""Targets that cannot be written: read-only, full, not a folder. Real mounts where the system allows them."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import SCRIPTS, Result, command, require_one_line
from inference_kernels.core import files

# A mount namespace of its own: the mounts end with the process, even if it is killed.
NAMESPACE = ["unshare", "--map-root-user", "--mount"]
IMPORT = f"{sys.executable} {SCRIPTS}/capture_inputs.py --store workloads --import-capture"


@pytest.fixture(scope="module")
def large_run(tmp_path_factory) -> Path:
    """A folder with a run of 1.6 MB (`run`) and an empty dataset (`root`)."""
    folder = tmp_path_factory.mktemp("large")
    root = toy.toy_root(folder / "root")
    toy.captured_run(folder / "run", root, rows=(3, 40_000))
    return folder


def in_namespace(folder: Path, script: str) -> Result:
    """Run shell lines with a tmpfs of 1 MiB at `disk`, holding `root`; skips where that is not allowed."""
    (folder / "disk").mkdir(exist_ok=True)
    allowed = subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "none", folder / "disk"], capture_output=True, text=True
    )
    if allowed.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {allowed.stderr.strip()}")
    lines = f"cd '{folder}'; mount -t tmpfs -o size=1m none disk; cp -r root disk/root; {script}"
    done = subprocess.run([*NAMESPACE, "sh", "-ec", lines], capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare(1) to mount a small disk")
def test_a_full_disk_is_named_and_a_larger_one_completes_the_import(large_run, tmp_path):
    result = in_namespace(
        large_run,
        f"""
        {IMPORT} run --output-root disk/root && exit 9
        find disk/root -name '.tmp-*' -o -name captures.jsonl | grep . && exit 8
        mount -o remount,size=8m disk
        {IMPORT} run --output-root disk/root >/dev/null
        cp -r disk/root '{tmp_path}/after'""",
    )
    require_one_line(result, "disk/root/blob/workloads/", "No space left on device", "free some space", code=0)
    shutil.copytree(large_run / "root", tmp_path / "whole")
    toy.import_run(large_run / "run", tmp_path / "whole", "workloads")
    assert toy.tree_bytes(tmp_path / "after") == toy.tree_bytes(tmp_path / "whole")


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare(1) to mount a small disk")
def test_a_read_only_target_is_named(large_run):
    result = in_namespace(
        large_run,
        f"""
        mount -o remount,ro disk
        {IMPORT} run --output-root disk/root""",
    )
    require_one_line(result, "disk/root/blob", "Read-only file system", "choose a writable target")


@pytest.mark.parametrize(
    "code,words",
    [
        (errno.EROFS, "choose a writable target"),
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "check the permissions"),
        (errno.EIO, "see the system's message"),
    ],
)
def test_system_errors_become_one_line(tmp_path, monkeypatch, code, words):
    """The same without a mount: the rename that ends every write fails."""
    root = toy.toy_root(tmp_path / "root")
    toy.captured_run(tmp_path / "run", root)

    def refuse(source: str, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(target))

    before = toy.tree_bytes(root)
    monkeypatch.setattr(files.os, "replace", refuse)
    result = command("capture_inputs.py", "--import-capture", tmp_path / "run", "--output-root", root)
    require_one_line(result, os.strerror(code), words)
    assert toy.tree_bytes(root) == before


def test_a_target_below_a_regular_file(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    toy.captured_run(tmp_path / "run", root)
    (root / "blob").write_text("in the way")
    result = command("capture_inputs.py", "--import-capture", tmp_path / "run", "--output-root", root)
    require_one_line(result, "root/blob", "a file is in the way")
    assert not (root / "captures.jsonl").exists()


def test_reports_into_impossible_places(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    (tmp_path / "file").write_text("")
    for place, words in ((tmp_path / "file" / "report.json", "a file is in the way"), (tmp_path, "name a file")):
        result = command("check_workload_inputs.py", "--root", root, "--json", place)
        require_one_line(result, str(tmp_path), words)
