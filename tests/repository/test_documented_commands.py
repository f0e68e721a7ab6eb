"""Every command line of the documents: run with --dry-run where there is one, otherwise parsed by its own parser."""

import re
import shlex

import pytest

from helpers.commands import command
from helpers.documented import DOCUMENTS, OURS, REPOSITORY, STRANGERS, blocks, documented_calls, make_plan, shell_calls
from inference_kernels.pages.cli import actions, parser_of, subcommands

# Fast commands that only read are run as written.
READ_ONLY = ("check_workload_inputs.py",)
IDS = [path.relative_to(REPOSITORY).as_posix() for path in DOCUMENTS]
# Shell scripts; True if their first argument is a verb that they must know.
SHELL_SCRIPTS = {"scripts/run_gpu_benchmarks.sh": False}
REPRODUCE = REPOSITORY / "docs" / "reproduce.md"


@pytest.fixture
def locks(tmp_path):
    return str(tmp_path / "locks")


@pytest.fixture(params=DOCUMENTS, ids=IDS)
def calls(request, tmp_path):
    return documented_calls(request.param, tmp_path)


def options_of(script, arguments):
    """List the option strings that a call can use, including those of its subcommand."""
    parser = parser_of(script)
    children = [child for name, _, child in subcommands(parser) if name in arguments]
    return {text for item in [parser, *children] for action in actions(item) for text in action.option_strings}


def test_calls_are_taken_by_the_programs(calls, capsys):
    for program, *arguments in calls:
        assert program in (*OURS, *STRANGERS), program
        if program == "make":
            assert not (done := make_plan(*arguments)).returncode, done.stderr
        elif program == "bash":
            script, first, *_ = arguments
            assert script in SHELL_SCRIPTS
            assert not SHELL_SCRIPTS[script] or f" {first} " in (REPOSITORY / script).read_text()
        elif program == "python" and arguments[0] != "-m":
            script, *rest = arguments
            assert (REPOSITORY / script).is_file(), script
            # A name alone refers to the command; anything more must be a call that its parser takes.
            if rest:
                refused(script, rest, capsys)


def refused(script, arguments, capsys):
    """Fail with the parser's own words if it does not take the arguments."""
    try:
        parser_of(REPOSITORY / script).parse_args(arguments)
    except SystemExit as stop:
        assert stop.code == 0, f"{shlex.join([script, *arguments])}: {capsys.readouterr().err}"


def test_calls_with_a_dry_run_print_their_plan(calls, locks, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    for _, script, *arguments in [call for call in calls if call[0] == "python" and len(call) > 2]:
        if script.startswith("scripts/") and "--dry-run" in options_of(REPOSITORY / script, arguments):
            arguments = [locks if part == "/tmp/kernel-locks" else part for part in arguments]
            result = command(
                script.removeprefix("scripts/"), *arguments, *["--dry-run"] * ("--dry-run" not in arguments)
            )
            assert result.code == 0 and result.out, (script, arguments, result.err)


def test_calls_that_only_read_are_run(calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in calls:
        script, *arguments = call[1:] or [""]
        if call[0] == "python" and script.removeprefix("scripts/") in READ_ONLY and "--root" not in arguments:
            assert command(script.removeprefix("scripts/"), *arguments).code == 0, call


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_programs_that_documents_name_exist(document):
    for name in re.findall(r"\b(?:scripts|benchmarks|tests)/[\w/]+\.(?:py|sh)\b", document.read_text()):
        assert (REPOSITORY / name).is_file(), name


def test_python_of_the_readme_runs(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    for source in blocks((REPOSITORY / "README.md").read_text(), "python"):
        exec(compile(source, "README.md", "exec"), {})


def test_every_model_has_its_sequence(tmp_path):
    planned = [
        " ".join(call)
        for call in documented_calls(REPRODUCE, tmp_path)
        if any("run_modal_capture" in part for part in call)
    ]
    assert len(planned) >= 12
    for kind in ("image", "qwen-next", "deepseek41", "ltx25"):
        assert any(f"--kind {kind}" in line and "--prepare-model" in line for line in planned)
        assert any(f"--kind {kind}" in line and "--prepare-model" not in line for line in planned)


@pytest.mark.parametrize("block", ["python scripts/verify.py --deep", "pyhton scripts/verify.py", "echo $nowhere"])
def test_wrong_lines_are_found(block, tmp_path, capsys):
    with pytest.raises(AssertionError):
        for _, script, *arguments in shell_calls(block, tmp_path):
            refused(script, arguments, capsys)


def test_shell_is_understood(tmp_path):
    block = 'one() { python a.py "$@" | tar x; }\nfor x in 1 2; do one --n $x "a b"; done\nV=1 make run > log'
    found = sorted(map(tuple, shell_calls(block, tmp_path)))
    assert found == [
        ("make", "run"),
        ("python", "a.py", "--n", "1", "a b"),
        ("python", "a.py", "--n", "2", "a b"),
        ("tar", "x"),
        ("tar", "x"),
    ]
