"""run_gpu_capture.sh with a stand-in for Python: jobs, GPUs, shared checkpoints, failures, reports."""

import json
import os
import subprocess
import sys
import tarfile

import pytest

from helpers.commands import SCRIPTS

STAND_IN = """#!/bin/bash
echo "$CUDA_VISIBLE_DEVICES $*" >> "$WORK/asked"
value() { while [ $# -gt 2 ]; do [ "$2" = "$1" ] && echo "$3" && return; set -- "$1" "${@:3}"; done; }
case $1 in
  scripts/make_seeded_checkpoint.py) [ "$(value --kind "$@")" != ltx25 ] ;;
  scripts/capture_llm.py) mkdir -p "$(value --output-root "$@")"; echo '{}'; echo bad luck >&2
    [ "$(value --profile "$@")" != large ] ;;
  scripts/summarise_capture.py) echo "$SUMMARY" > "$(value --output "$@")" ;;
  *) exec "$REAL" "$@" ;;
esac
"""
CALL = {
    "definition": "d",
    "case": "c",
    "phase": "decode",
    "step": 0,
    "batch": 2,
    "passed": True,
    "errors": {"y": {"max_abs_error": 0.5, "tolerance_used": 0.25}},
}
SUMMARY = json.dumps({"complete": True, "excluded": [], "cases": {}, "missed": [], "calls": [CALL]})


@pytest.fixture
def queue(tmp_path):
    """Runs the script with a command line; `work` is its folder, where `asked` lists what Python was told."""
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    work = tmp_path / "work"
    environment = os.environ | {
        "WORK": str(work),
        "CACHE": str(tmp_path / "cache"),
        "OUT": str(tmp_path),
        "GPUS": "4 7",
        "QUEUE_PYTHON": str(python),
        "REAL": sys.executable,
        "SUMMARY": SUMMARY,
        "CAPTURE_FLAGS": "",
    }

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", SCRIPTS / "run_gpu_capture.sh", *words],
            env=environment,
            text=True,
            capture_output=True,
            timeout=60,
        )

    run.work = work
    return run


def test_jobs_are_spread_over_gpus_and_share_checkpoints(queue):
    done = queue("queue", "deepseek41", "deepseek41/large", "qwen-next/rehearsal/short_request,cold_main")
    assert done.returncode == 0 and not done.stderr
    asked = (queue.work / "asked").read_text().splitlines()
    checkpoints = [line.split("--kind ")[1].split()[0] for line in asked if "make_seeded" in line]
    assert checkpoints == ["deepseek41", "qwen-next"]
    captures = {line.split("--output-root ")[1].split("/")[-2]: line for line in asked if "capture_llm" in line}
    assert {name: line.split()[0] for name, line in captures.items()} == {
        "deepseek41": "4",
        "deepseek41-large": "7",
        "qwen-next-rehearsal": "4",
    }
    assert "--profile rehearsal" in captures["qwen-next-rehearsal"]
    assert "--case short_request --case cold_main" in captures["qwen-next-rehearsal"]
    assert all(
        f"--model-path {queue.work}/{name.split('-l')[0].split('-r')[0]}/checkpoint" in line
        for name, line in captures.items()
    )
    log = (queue.work / "queue.log").read_text()
    assert "capture deepseek41 done" in log and "capture deepseek41-large FAILED (1): bad luck" in log
    assert log.rstrip().endswith("queue finished")
    assert "deepseek41-large: complete True" in (table := queue("table").stdout)
    assert "y 0.5 (0.25 of the tolerance)" in table and "pass" in table


def test_a_kind_without_checkpoint_is_not_captured(queue):
    queue("queue", "ltx25")
    assert "capture ltx25 FAILED: no checkpoint" in (queue.work / "queue.log").read_text()
    assert "capture_llm" not in (queue.work / "asked").read_text()


def test_reports_hold_summaries_and_logs_and_no_run(queue, tmp_path):
    queue("queue", "qwen-next")
    assert queue("reports", "first").returncode == 0
    with tarfile.open(tmp_path / "first.tar.gz") as archive:
        assert {"queue.log", "qwen-next.json", "qwen-next/summary.json", "qwen-next/capture.log"} <= set(
            archive.getnames()
        )
        assert not [name for name in archive.getnames() if "dataset" in name]


def test_without_a_command_it_explains_itself(queue):
    done = queue()
    assert done.returncode == 2 and "start JOB..." in done.stdout and "set -uo" not in done.stdout
