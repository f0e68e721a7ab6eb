"""How tasks tell wrong answers from right ones: the measuring tool, dev subsets, the references' self-test."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import judge_toy
from helpers.toy import NAME, toy_dataset
from inference_kernels.check import discrimination as tool
from inference_kernels.check.self_test import self_test
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.tasks import choose_dev, read_task, task_text, write_dev
from inference_kernels.core.workloads import Available, available_workloads, data_classes
from inference_kernels.pages import build
from inference_kernels.pages import discrimination as report

Y_ONLY = ("zeros", "mean value", "input x as y", "other workload", "rows swapped")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return toy_dataset(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def root(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "dataset")


def measured(root: Path) -> tool.Measured:
    return tool.measure(root, load_definition(root, NAME), data_classes(root), "cpu")


def loosen(root: Path) -> None:
    """A tolerance under which every floating output passes."""
    task = root / "tasks" / f"{NAME}.json"
    task.write_text(task.read_text().replace("0.005", "1000000.0"))


def test_every_trick_is_tried_and_told_apart(root):
    result = measured(root)
    assert not result.errors and not result.skipped and len(result.workloads) == 2
    tricks = {trial.trick for trial in result.trials}
    assert tricks == {*Y_ONLY, "input ids as count"}
    assert all(trial.told_apart for trial in result.trials)


def test_shares_are_counted(root):
    # ids of the 5-row call are 0 1 4 4 1, so count is 1 2 0 0 2: two zeros of five, mean 1.
    trials = {
        trial.trick: trial
        for trial in measured(root).trials
        if trial.outputs.get("count") and len(trial.outputs) in (1, 2) and trial.workload == five_rows(root)
    }
    assert trials["zeros"].outputs["count"].share == 0.4
    assert trials["mean value"].outputs["count"].share == 0.2
    assert trials["rows swapped"].outputs["count"].share == 0.6
    assert trials["rows swapped"].note == "y: N 0 and 1; count: N 0 and 1"
    assert "cropped" not in trials["other workload"].note and "tiled 3 to 5" in trials["other workload"].note


def five_rows(root: Path) -> str:
    found = available_workloads(root, load_definition(root, NAME), {})
    return next(item.uuid for item in found if item.workload["axes"]["N"] == 5)


def test_a_blind_tolerance_is_reported(root):
    loosen(root)
    trials = measured(root).trials
    missed = [trial for trial in trials if not trial.told_apart]
    # The count of the 5-row call, cropped to three rows, happens to be that of the 3-row call.
    assert sorted(trial.trick for trial in missed) == ["input x as y", "input x as y", "other workload"]
    assert all(trial.share == 1.0 for trial in missed)
    assert all(trial.outputs["y"].passed for trial in trials if "y" in trial.outputs)


def test_summary_and_page(root):
    loosen(root)
    result = measured(root)
    definition = load_definition(root, NAME)
    assert "What the tolerance cannot tell apart" not in build.definition_page(root, definition, [])
    path = report.write_summary(root, [result], {NAME: True})
    first = path.read_bytes()
    report.write_summary(root, [measured(root)], {NAME: True})
    assert path.read_bytes() == first
    page = build.definition_page(root, definition, [])
    assert page.count("input x as y, workload") == 2 and "| zeros | 2 of 2 |" in page


def test_summary_keeps_what_could_not_be_measured_and_drops_the_unknown(root):
    path = report.write_summary(root, [measured(root)], {NAME: True})
    report.write_summary(root, [tool.Measured(NAME, skipped={"u": "missing"})], {NAME: True})
    assert NAME in json.loads(path.read_text())
    report.write_summary(root, [], {NAME: False})
    assert json.loads(path.read_text()) == {}


def test_absent_tensors_are_skipped_with_the_remedy(root):
    shutil.rmtree(root / "blob" / "generated")
    result = measured(root)
    assert not result.trials and len(result.skipped) == 2
    assert all("materialize_seeded.py" in reason for reason in result.skipped.values())


def test_pointers_are_skipped_with_the_command(root):
    for path in (root / "blob" / "generated").rglob("*.safetensors"):
        path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{path.stem}\nsize 216\n")
    result = measured(root)
    assert not result.trials and len(result.skipped) == 2
    assert all("git lfs pull --include" in reason for reason in result.skipped.values())


def test_a_reference_that_fails_is_an_error(root):
    source = "def run(x, weight, ids, scale):\n    return x[99:0:0]\n"
    definition = load_definition(root, NAME) | {"reference": source}
    result = tool.measure(root, definition, {}, "cpu")
    assert len(result.errors) == 1 and "correct the reference" in result.errors[0]


def test_the_other_workload_has_the_same_shape_if_possible():
    found = [item(3, 0), item(5, 0), item(5, 1), item(7, 0)]
    shapes = {one.uuid: [(one.workload["axes"]["N"], 8)] for one in found}
    partners = [tool._partner(found, index, shapes) for index in range(4)]
    assert [found.index(partner) for partner in partners] == [1, 2, 1, 2]
    assert tool._partner(found[:1], 0, shapes) is None


def test_fit_crops_and_tiles():
    value = torch.arange(6).reshape(3, 2)
    assert tool.fit(value, (3, 2)) == (value, "")
    cropped, how = tool.fit(value, (2, 2))
    assert cropped.tolist() == [[0, 1], [2, 3]] and how == "cropped 3 to 2 on axis 0"
    tiled, how = tool.fit(value, (5, 1))
    assert tiled.flatten().tolist() == [0, 2, 4, 0, 2]
    assert how == "tiled 3 to 5 on axis 0, cropped 2 to 1 on axis 1"
    assert tool.fit(torch.ones(0, 2), (2, 2))[0].tolist() == [[0, 0], [0, 0]]


def test_swap_takes_the_first_rows_that_differ():
    value = torch.tensor([[1, 1], [1, 1], [2, 3]])
    swapped, how = tool.swap_rows(value, ["M", "N"], ["M"])
    assert swapped.tolist() == [[1, 1], [2, 3], [1, 1]] and how == "M 1 and 2"
    assert tool.swap_rows(value[:2], ["M", "N"], ["M"]) is None
    assert tool.swap_rows(value[:1], ["M", "N"], ["M"]) is None
    assert tool.swap_rows(value, ["N", "K"], []) is None
    batch_of_one = torch.tensor([[[1], [2]]])
    assert tool.swap_rows(batch_of_one, ["B", "Q", "D"], ["B", "Q"])[1] == "Q 0 and 1"


def test_shares_are_rounded_down():
    assert [tool.floor_share(share) for share in (0.99999, 1.0, 0.0, None)] == [0.999, 1.0, 0.0, None]


def item(rows: int, number: int, data_class: str = "seeded", other: int = 0) -> Available:
    axes = {"N": rows, "P": other}
    return Available({"uuid": f"{data_class}-{rows}-{other}-{number:02}", "axes": axes}, data_class)


@pytest.fixture
def task(root):
    return read_task(root, NAME)


def test_dev_takes_all_of_few(task):
    few = [item(rows, 0) for rows in (8, 3, 5)]
    assert choose_dev(task, few) == [item(rows, 0).uuid for rows in (3, 5, 8)]


def test_dev_is_spread_over_classes_and_values(task):
    many = [
        item(rows, number, kind) for rows in range(1, 30) for number in range(3) for kind in ("published", "seeded")
    ]
    chosen = choose_dev(task, many)
    assert len(chosen) == 10 == len(set(chosen))
    for kind in ("published", "seeded"):
        rows = [int(uuid.split("-")[1]) for uuid in chosen if uuid.startswith(kind)]
        assert len(set(rows)) == 5 and min(rows) == 1 and max(rows) == 29 and 15 in rows
    assert choose_dev(task, many[::-1]) == chosen


def test_dev_uses_other_axes_within_one_value(task):
    chosen = choose_dev(task, [item(4, number, other=other) for number in range(4) for other in range(20)])
    assert len({uuid.split("-")[2] for uuid in chosen}) == 10


def test_dev_gives_a_rare_class_its_place(task):
    many = [item(rows, 0, "published") for rows in range(50)] + [item(7, 0, "seeded")]
    assert "seeded-7-0-00" in choose_dev(task, many)


def test_task_files_have_the_one_format(repository):
    for path in sorted((repository / "tasks").glob("*.json")):
        text, value = path.read_text(), json.loads(path.read_text())
        assert task_text(value) == text
        assert json.loads(task_text(value | {"dev": ["a"]})) == value | {"dev": ["a"]}


def test_write_dev_once(root):
    uuids = [found.uuid for found in available_workloads(root, load_definition(root, NAME), {})]
    assert write_dev(root, NAME, uuids) and not write_dev(root, NAME, uuids)
    text = (root / "tasks" / f"{NAME}.json").read_text()
    assert list(read_task(root, NAME).dev) == uuids and text == task_text(json.loads(text))
    assert len(measured(root).workloads) == 2
    write_dev(root, NAME, uuids[:1])
    assert list(measured(root).workloads) == uuids[:1]
    write_dev(root, NAME, ["00000000-0000-5000-8000-000000000000"])
    assert "does not exist" in measured(root).errors[0]


def test_references_pass_their_own_task(root):
    results = list(self_test(root, load_definition(root, NAME), data_classes(root), "cpu"))
    assert [result.status for result in results] == ["pass", "pass"]
    assert all(list(result.comparisons) == ["y", "count"] for result in results)


def test_non_finite_references_fail_the_workload(root):
    definition = load_definition(root, NAME)
    definition["reference"] = definition["reference"].replace("return y", "y[0, :3] = float('nan')\n    return y")
    result = next(self_test(root, definition, {}, "cpu"))
    assert result.status == "fail" and result.non_finite == {"y": 3} and "y 3 of" in result.reason


def test_a_reference_that_depends_on_its_module_fails(root):
    definition = load_definition(root, NAME)
    definition["reference"] = definition["reference"].replace(
        "return y", "y = y + (0 if __name__.startswith('reference_') else 8)\n    return y"
    )
    result = next(self_test(root, definition, {}, "cpu"))
    assert result.status == "fail" and result.reason.startswith("y: ") and not result.non_finite


def script(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = Path(tool.__file__).parents[2] / "check_tasks.py"
    return subprocess.run([sys.executable, path, "--root", root, *arguments], capture_output=True, text=True)


def run_script(root: Path, *arguments: str) -> tuple[int, dict]:
    done = script(root, *arguments)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_command(root, tmp_path):
    judge_toy.give_floor(root)
    code, totals = run_script(root, "--json", str(tmp_path / "all.json"))
    assert code == 0 and totals["not_told_apart"] == 0 and totals["trials"] == 12
    trials = json.loads((tmp_path / "all.json").read_text())["results"][0]["trials"]
    assert len(trials) == 12 and {"told_apart", "outputs", "trick", "workload"} <= set(trials[0])
    write_dev(root, NAME, ["00000000-0000-5000-8000-000000000000"])
    assert run_script(root)[0] == 1
    assert run_script(root, "--choose-dev")[1] == {"tasks": 1, "changed": 1}
    assert run_script(root, "--self-test")[1]["tested"] == 2


def test_a_definition_without_a_floor_is_refused(root):
    done = script(root)
    assert done.returncode == 2 and "judge/floor.py" in done.stderr and "found toy" in done.stderr


def test_rows_can_be_exchanged_in_every_definition(definition, repository):
    for path in sorted((repository / "tasks").glob("*.json")):
        record = definition(path.stem)
        axes = {axis for output in record["outputs"].values() for axis in output["shape"]}
        assert any(record["axes"][axis]["type"] == "var" for axis in axes), path.stem
