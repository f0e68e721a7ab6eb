"""kill -9 at every dangerous moment; the same command again gives the tree of an undisturbed import."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import killed, toy
from helpers.commands import command, require_one_line

OTHER = "toy_other"


@pytest.fixture(scope="module")
def killed_imports(tmp_path_factory) -> Path:
    """A folder with the run, a whole import, and for each kill point the root that was left."""
    folder = tmp_path_factory.mktemp("killed")
    fresh = toy.toy_root(folder / "fresh")
    toy.add_definition(fresh, OTHER)
    toy.captured_run(folder / "run", fresh, names=(toy.NAME, OTHER))
    shutil.copytree(fresh, folder / "whole")
    toy.import_run(folder / "run", folder / "whole")
    jobs = [["capture", folder / "half run", fresh]]
    for point in killed.POINTS:
        shutil.copytree(fresh, folder / point)
        jobs.append([point, folder / "run", folder / point])
    done = subprocess.run(
        [sys.executable, killed.__file__, json.dumps(jobs, default=str)], capture_output=True, text=True
    )
    assert json.loads(done.stdout) == [signal.SIGKILL] * len(jobs), done
    return folder


@pytest.mark.parametrize("point", killed.POINTS)
def test_importing_again_completes_a_killed_import(killed_imports, tmp_path, point):
    root, run = tmp_path / "root", killed_imports / "run"
    shutil.copytree(killed_imports / point, root)
    left = toy.tree_bytes(root)
    whole = toy.tree_bytes(killed_imports / "whole")
    assert left != whole, "the kill came too late to test anything"
    assert all(whole[name] == content for name, content in left.items() if ".tmp-" not in name)
    again = command("capture_inputs.py", "--import-capture", run, "--output-root", root, "--store", "starter")
    assert (again.code, again.err) == (0, "")
    assert toy.tree_bytes(root) == whole


@pytest.mark.parametrize(
    "point,word",
    [
        ("inside a copy", "a leftover of a killed import"),
        ("after five copies", "an unreferenced one"),
        ("between records and workloads", "a workload"),
        ("inside a workload file", "a leftover of a killed import"),
        ("between two workload files", "a workload"),
    ],
)
def test_the_checker_says_what_a_kill_left(killed_imports, point, word):
    result = command("check_workload_inputs.py", "--root", killed_imports / point)
    assert word in result.out and result.err == ""


def test_a_killed_capture_is_refused_and_resumed(killed_imports, tmp_path):
    half, root = tmp_path / "run", tmp_path / "root"
    shutil.copytree(killed_imports / "half run", half)
    shutil.copytree(killed_imports / "fresh", root)
    left = [path for path in half.rglob("*.safetensors")]
    refused = command("capture_inputs.py", "--import-capture", half, "--output-root", root)
    require_one_line(refused, "a complete run; found 1 finished cases", "run the capture command again: it resumes")
    run = toy.start_run(half)
    assert run.finished_cases == [f"{toy.NAME}3"]
    assert len(list(half.rglob("*.safetensors"))) < len(left), "the unlisted tensors are still there"
    toy.play_case(run, root, f"{toy.NAME}5", 5)
    list(toy.validate_run(run, root, "cpu"))
    run.complete()
    toy.import_run(half, root)
    undisturbed = toy.toy_root(tmp_path / "undisturbed")
    toy.add_definition(undisturbed, OTHER)
    toy.captured_run(tmp_path / "other run", undisturbed)
    toy.import_run(tmp_path / "other run", undisturbed)
    assert toy.tree_bytes(root) == toy.tree_bytes(undisturbed)
