"""Locks of GPUs: they name their holder, die with it, and a folder that cannot lock is warned of."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from inference_kernels.core import locks
from inference_kernels.core.errors import LockHeld
from inference_kernels.core.locks import lock_path, locked, network_warning

pytestmark = pytest.mark.no_torch

HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from inference_kernels.core.locks import locked
with locked(Path(sys.argv[2]), ["GPU-b", "GPU-a"], 5):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_lock_names_its_holder_and_dies_with_it(repository, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(repository / "scripts"), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeld) as caught, locked(tmp_path, ["GPU-a"], 0.2):
            pass
        assert str(holder.pid) in caught.value.line() and "--lock-timeout" in caught.value.line()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with locked(tmp_path, ["GPU-a", "GPU-b"], 5):
            assert json.loads(lock_path(tmp_path, "GPU-a").read_text())["pid"] == os.getpid()
    finally:
        holder.kill()
        holder.wait()


def test_a_lock_waits_for_its_turn(tmp_path):
    with locked(tmp_path, ["GPU-a"], 0):
        begun = time.monotonic()
        with pytest.raises(LockHeld), locked(tmp_path, ["GPU-a"], 0.3):
            pass
        assert time.monotonic() - begun >= 0.3


def test_a_network_file_system_is_warned_of(tmp_path, monkeypatch):
    mounts = f"/dev/vda / ext4 rw 0 0\nserver:/export {tmp_path} nfs4 rw 0 0\n"
    assert "nfs4" in network_warning(tmp_path / "locks", mounts)
    assert network_warning(tmp_path / "locks", "/dev/vda / ext4 rw 0 0\n") == ""
    monkeypatch.setattr(locks, "MOUNTS", tmp_path / "mounts")
    assert network_warning(tmp_path) == ""
    (tmp_path / "mounts").write_text(mounts)
    assert "nfs4" in network_warning(tmp_path)
