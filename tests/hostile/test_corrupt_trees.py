"""Every kind of damage of the corruption tables, through the real command: right level, place and words."""

import shutil
from pathlib import Path

import pytest

from helpers import corrupt_blobs, corrupt_definitions, corrupt_records, toy
from helpers.commands import command
from helpers.toy_tree import Tree

TABLES = corrupt_blobs.CASES + corrupt_records.CASES + corrupt_definitions.CASES


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return toy.toy_dataset(tmp_path_factory.mktemp("sound"), store="workloads")


def test_the_sound_tree_has_no_findings(sound):
    result = command("check_workload_inputs.py", "--root", sound, "--jobs", 1)
    assert (result.code, result.err, result.findings) == (0, "", [])
    assert result.summary["checked"] == 2 and result.summary["classes"]["seeded"] == 2


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.label)
def test_damage_is_found_and_explained(sound, tmp_path, case):
    root = tmp_path / "root"
    shutil.copytree(sound, root)
    case.corrupt(Tree(root))
    result = command("check_workload_inputs.py", "--root", root, "--jobs", 1)
    assert result.err == ""
    matching = [line for line in result.findings if line.startswith(f"{case.level} ") and case.where in line]
    assert any(all(fragment in line for fragment in case.fragments) for line in matching), result.out
    assert result.summary["errors"] == case.errors, result.out
    assert result.code == (1 if case.errors else 0)


def test_labels_are_unique():
    labels = [case.label for case in TABLES]
    assert len(set(labels)) == len(labels)
