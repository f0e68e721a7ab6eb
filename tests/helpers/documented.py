"""The command lines of the documents, run by a shell in which every program only records its call."""

import os
import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`((?:python|make|bash) [^`]+)`")
# Programs in the documents that are not this repository's; any other name fails in the shell.
STRANGERS = ("cat", "cp", "git", "hf", "mkdir", "pip", "rm", "rsync", "tar")
OURS = ("python", "make", "bash")
# The stubs make nothing, so a new folder, such as that of a clone, does not exist.
BUILTINS = "cd() { :; }; source() { :; }\n"
# One write per call, because programs of a pipe write at the same time.
STUB = '#!/bin/sh\nprintf "%s" "$(printf "%s\\037" "${0##*/}" "$@"; printf "\\036")" >> "$CALLS"\n'


def blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def shell_calls(script: str, folder: Path) -> list[list[str]]:
    """List every program that bash would start, with its arguments; loops, functions and variables are real."""
    programs, calls = folder / "programs", folder / "calls"
    programs.mkdir()
    calls.touch()
    for name in (*OURS, *STRANGERS):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    environment = {"PATH": str(programs), "CALLS": str(calls), "HOME": str(folder)}
    done = subprocess.run(
        ["/bin/bash", "-eu", "-c", BUILTINS + script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [call.split("\x1f")[:-1] for call in calls.read_text().split("\x1e")[:-1]]


def spans(text: str) -> list[str]:
    """Find command lines inside running text."""
    return [" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", text))]


def documented_calls(document: Path, folder: Path) -> list[list[str]]:
    """List every call of one document once."""
    text = document.read_text()
    found = shell_calls("\n".join([*blocks(text, "bash"), *spans(text)]), folder)
    return [list(call) for call in dict.fromkeys(map(tuple, found))]


def make_plan(*targets: str) -> subprocess.CompletedProcess:
    """Run `make -n`, which prints what the targets would run."""
    return subprocess.run(
        ["make", "-n", *targets],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"MAKEFLAGS": ""},
    )
