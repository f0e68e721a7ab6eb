"""Run the commands of scripts/ as a user would, in the test process or in a process of their own."""

import io
import json
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON line that ends the output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def findings(self) -> list[str]:
        return self.out.splitlines()[:-1]

    def errors(self) -> list[str]:
        return [line for line in self.findings if line.startswith("error ")]


def command(script: str, *arguments: Any) -> Result:
    """Run the script's `__main__` in this process; an exception that it does not translate fails the test."""
    out, err, saved = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = [str(SCRIPTS / script), *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        return Result(stop.code, out.getvalue(), err.getvalue())
    finally:
        sys.argv = saved
    raise AssertionError(f"{script} did not leave with an exit code")


def process(script: str, *arguments: Any, before: tuple[str, ...] = (), **environment: str) -> Result:
    """Run the script in a process of its own; `before` are interpreter options."""
    done = subprocess.run(
        [sys.executable, *before, str(SCRIPTS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def require_one_line(result: Result, *fragments: str, code: int = 2) -> None:
    """Require an explained failure: exit code, one line on stderr with every fragment, no traceback."""
    assert result.code == code, result
    lines = result.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.err
    for fragment in fragments:
        assert fragment in lines[0], (fragment, lines[0])
