"""Every script explains itself with the standard library alone: no torch, no engine, no GPU package."""

import re

import pytest

from helpers.commands import SCRIPTS, process

pytestmark = pytest.mark.no_torch


NAMES = sorted(path.name for path in SCRIPTS.glob("*.py"))


def test_the_scripts_are_found():
    assert {"check_workload_inputs.py", "capture_inputs.py", "materialize_seeded.py", "pack.py", "verify.py"} <= set(
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_help_needs_the_standard_library_only(name):
    """`-S` leaves site-packages out, `-E` the environment's paths."""
    result = process(name, "--help", before=("-S", "-E"))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: {name}") and "options:" in result.out
    undocumented = [line for line in result.out.splitlines() if re.fullmatch(r"  (-\w, )?--[\w-]+( \S+)?", line)]
    lines = result.out.splitlines()
    for line in undocumented:  # the help of a long option is on the next line
        assert lines[lines.index(line) + 1].startswith(" " * 10), f"{line.strip()} has no help text"
