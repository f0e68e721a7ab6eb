"""The edge of every command: exceptions, tables, the progress bar."""

import errno
import os
import subprocess
import sys

import pytest

from inference_kernels import cli
from inference_kernels.core import layout
from inference_kernels.core.errors import (
    CaptureError,
    ConstraintError,
    DatasetError,
    EnvironmentMissing,
    ImportRefused,
    PackError,
    PathError,
    PointerError,
    ReplayError,
    SchemaError,
    TensorFileError,
)
from inference_kernels.core.findings import Findings

pytestmark = pytest.mark.no_torch


ERRORS = (
    CaptureError,
    ConstraintError,
    EnvironmentMissing,
    ImportRefused,
    PackError,
    PathError,
    PointerError,
    ReplayError,
    SchemaError,
    TensorFileError,
)


def leave(main, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        cli.run_main(main)
    return stop.value.code, capsys.readouterr().err


def failing(error: BaseException):
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize("kind", ERRORS)
def test_expected_errors_become_one_line(kind, capsys):
    error = kind(expected="a", found="b", where="c", remedy="d")
    assert isinstance(error, DatasetError)
    assert leave(failing(error), capsys) == (2, "error: c: expected a; found b; d\n")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_one_of_the_command(code, capsys):
    assert leave(lambda: code, capsys) == (code, "")


@pytest.mark.parametrize(
    "error,words",
    [
        (OSError(errno.ENOSPC, "No space left on device", "f"), "f: No space left on device; free some space"),
        (OSError(errno.EROFS, "Read-only file system", "f"), "choose a writable target"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "f"),
            "f: No such file or directory; check the path",
        ),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "tmp", None, "f"), "f: Is a directory; name a file"),
        (OSError("odd"), "input/output: odd; see the system's message"),
        (ModuleNotFoundError("no", name="modal"), "the Python package modal; found not installed; run `make install`"),
    ],
)
def test_errors_of_the_system_become_one_line_with_a_remedy(error, words, capsys):
    code, text = leave(failing(error), capsys)
    assert code == 2 and words in text and text.count("\n") == 1


def test_an_interrupt_has_its_own_code(capsys):
    code, text = leave(failing(KeyboardInterrupt()), capsys)
    assert (code, text) == (130, "error: interrupted; run the same command again to resume\n")


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), KeyError("bug")])
def test_a_defect_is_not_hidden(error):
    with pytest.raises(type(error)):
        cli.run_main(failing(error))


def test_a_closed_pipe_is_no_traceback():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from inference_kernels import cli\n"
        "cli.run_main(lambda: [print('x' * 100) for _ in range(10000)] and 0)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(layout.REPOSITORY / "scripts")],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_tables_are_aligned_and_numbers_stand_to_the_right(capsys):
    cli.print_table(
        [{"name": "a", "n": 5}, {"name": "longer", "n": 12345}, {"name": "x", "n": 1.5}], ["name", "n", "none"]
    )
    assert capsys.readouterr().out.splitlines() == [
        "name        n  none",
        "a           5",
        "longer  12345",
        "x         1.5",
    ]
    cli.print_table([], ["name"])
    assert capsys.readouterr().out == "name\n"


def test_progress_passes_items_through_without_a_terminal():
    assert list(cli.progress(iter([1, 2]), 2, "x")) == [1, 2]


def test_findings_keep_their_order_and_count_by_level():
    findings = Findings()
    findings.add("note", "a", "b", "c", "d")
    findings.add_error(SchemaError(expected="e", found="f", where="g", remedy="h"))
    assert [item.line() for item in findings.items] == [
        "note a: expected b; found c; d",
        "error g: expected e; found f; h",
    ]
    assert (findings.count("error"), findings.count("warning"), findings.count("note")) == (1, 0, 1)
    assert findings.to_json()[1] == {"level": "error", "where": "g", "expected": "e", "found": "f", "remedy": "h"}
