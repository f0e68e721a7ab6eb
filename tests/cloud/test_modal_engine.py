"""The whole path with the real capture script and engine on CPU: prepare, capture, kill, go on, import.

Takes some minutes and 3 GB of disk, so it runs on request only: TEST_DISTRIBUTION=1, after `make engine`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import SCRIPTS, process
from inference_kernels.capture.engine import ENGINE_PYTHON

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_DISTRIBUTION") != "1" or not ENGINE_PYTHON.exists(),
    reason="needs TEST_DISTRIBUTION=1 and the engine of `make engine`",
)
NAME = "distribution-test"
REPOSITORY = SCRIPTS.parent
CASES = ["text_to_image", "landscape", "edit"]
ATTENTION = "block_causal_attention_{}_prefix_h32_d128"
SMALL = [
    "--",
    "--steps-captured",
    "first,early",
    "--definition",
    ATTENTION.format("empty"),
    "--definition",
    ATTENTION.format("cached"),
    *(flag for case in CASES for flag in ("--size", f"{case}=64x64")),
]


def command(root: Path, *more: str) -> list[str]:
    return [
        "run_modal_capture.py",
        "--name",
        NAME,
        "--kind",
        "image",
        "--seeded",
        "--runner",
        "local",
        "--local-root",
        str(root / "local"),
        "--lock-directory",
        str(root / "locks"),
        *more,
    ]


def kill_container_after_first_case(launcher: subprocess.Popen, manifest: Path) -> None:
    end = time.monotonic() + 300
    while not manifest.exists() or len(json.loads(manifest.read_text())["cases"]) < 1:
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    container = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()[0]
    os.killpg(int(container), signal.SIGKILL)


@pytest.fixture
def target():
    folder = REPOSITORY / "results" / "capture" / NAME
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_real_capture_survives_pre_emption_and_is_imported(tmp_path, target):
    prepared = process(*command(tmp_path, "--prepare-model"))
    assert prepared.code == 0 and prepared.summary["prepared"]["class"] == "seeded", prepared.err
    cases = [flag for case in CASES for flag in ("--case", case)]
    script, *arguments = command(tmp_path, *cases, *SMALL)
    launcher = subprocess.Popen([sys.executable, str(SCRIPTS / script), *arguments], stdout=subprocess.PIPE, text=True)
    folder = tmp_path / "local" / "volumes" / "inference-kernels-captures" / "captures" / NAME
    kill_container_after_first_case(launcher, folder / "dataset" / "manifest.json")
    out, _ = launcher.communicate(timeout=600)
    assert launcher.returncode == 0 and json.loads(out.splitlines()[-1])["containers"] == 2
    assert {f"{case}_0.png" for case in CASES} < {path.name for path in (target / "results").iterdir()}
    root = tmp_path / "root"
    for part in ("definitions", "tasks"):
        shutil.copytree(REPOSITORY / part, root / part)
    assert toy.import_run(target / "dataset", root, "workloads") == 2 * len(CASES)
    replayed = process("capture_inputs.py", "--replay-root", root)
    assert replayed.code == 0 and replayed.summary["replayed"] == 2 * len(CASES)
