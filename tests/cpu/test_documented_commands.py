"""The command lines of docs/reproduce.md: each plan is printed, nothing is run."""

import re
import shlex

import pytest
from commands import SCRIPTS, command

TEXT = (SCRIPTS.parent / "docs" / "reproduce.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
LINES = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
PLANNED = [line for line in LINES if "run_modal_capture" in line or "--dry-run" in line]


@pytest.mark.parametrize("line", PLANNED)
def test_documented_command_prints_its_plan(line, tmp_path):
    program, script, *arguments = shlex.split(line)
    assert program == "python" and script.startswith("scripts/")
    arguments = [str(tmp_path) if part == "/tmp/kernel-locks" else part for part in arguments]
    dry = [] if "--dry-run" in arguments else ["--dry-run"]
    result = command(script.removeprefix("scripts/"), *arguments, *dry)
    assert result.code == 0, result.err
    assert result.out and "Traceback" not in result.err


def test_every_model_has_its_sequence():
    assert len(PLANNED) >= 13
    for kind in ("image", "qwen-next", "deepseek41", "ltx25"):
        assert any(f"--kind {kind} " in line and "--prepare-model" in line for line in PLANNED)
        assert any(f"--kind {kind} " in line and "--prepare-model" not in line for line in PLANNED)
