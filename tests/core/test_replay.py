"""Validation and replay: a fault of the reference is reported as such, with its workload."""

import json
import math
import os
import re
import shutil
import traceback
from pathlib import Path

import pytest
import torch

from helpers import toy
from helpers.commands import command
from inference_kernels.capture.validate import require_passed, validate_run
from inference_kernels.core import definitions, replay
from inference_kernels.core.definitions import read_definition
from inference_kernels.core.errors import CaptureError, EnvironmentMissing, ReplayError
from inference_kernels.core.files import write_json
from inference_kernels.core.layout import POINTER_FIRST_LINE
from inference_kernels.core.records import read_captures, read_workloads, write_captures
from inference_kernels.core.replay import call_reference, replay_root, require_device

DEFINITION = f"definitions/toy/{toy.NAME}.json"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return toy.toy_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture
def root(dataset, tmp_path) -> Path:
    shutil.copytree(dataset, tmp_path / "root")
    return tmp_path / "root"


def with_reference(root: Path, source: str) -> None:
    definition = read_definition(root / DEFINITION)
    write_json(root / DEFINITION, definition | {"reference": source})


def edited(old: str, new: str) -> str:
    source = (toy.DATA / DEFINITION).with_suffix(".py").read_text()
    assert source.count(old) == 1
    return source.replace(old, new)


def statuses(root: Path) -> list[tuple[str, str]]:
    return [(result.status, result.reason) for result in replay_root(root, "cpu")]


def test_a_sound_dataset_replays(dataset):
    results = list(replay_root(dataset, "cpu"))
    assert [result.status for result in results] == ["pass", "pass"]
    assert {result.data_class for result in results} == {"seeded"}
    for result in results:
        assert result.comparisons["y"].elements % 8 == 0 and result.comparisons["count"].max_abs_error == 0.0
        assert set(result.errors) == {"y", "count"} and "worst" not in result.errors["y"]


@pytest.mark.parametrize(
    "source,found",
    [
        (
            edited("return y.to(torch.bfloat16), count", "return y.to(torch.bfloat16)[:-1], count"),
            r"output y \(\d, 8\) bfloat16; found \(\d, 8\)",
        ),
        (edited("return y.to(torch.bfloat16), count", "return y, count"), "bfloat16; found .* float32"),
        (
            edited("return y.to(torch.bfloat16), count", "return y.to(torch.bfloat16), count.long()"),
            "output count .* int32; found .* int64",
        ),
        (edited("return y.to(torch.bfloat16), count", "return y.to(torch.bfloat16)"), "2 outputs; found 1 results"),
        (
            edited("return y.to(torch.bfloat16), count", "return y.to(torch.bfloat16), count, y"),
            "2 outputs; found 3 results",
        ),
        (edited("return y.to(torch.bfloat16), count", "return None"), "2 outputs; found 1 results"),
        (edited("return y.to(torch.bfloat16), count", "return y.to(torch.bfloat16), 5"), "output count .*; found int"),
        (
            edited("rows = ids.to(torch.int64)", "rows = ids.to(torch.int64) + 99"),
            "a reference that runs; found IndexError",
        ),
        (edited("def run(x, weight, ids, scale)", "def run(x, weight)"), "found TypeError: run\\(\\) takes 2"),
        (edited("def run(", "def walk("), "found AttributeError"),
        ("def run(x:", "found SyntaxError"),
        (
            edited("import torch\n", "import no_such_package\n"),
            "found ModuleNotFoundError: No module named 'no_such_package'",
        ),
    ],
)
def test_a_wrong_reference_is_an_error_of_each_workload_and_not_a_crash(root, source, found):
    with_reference(root, source)
    results = statuses(root)
    assert [status for status, _ in results] == ["error", "error"]
    assert all(re.search(found, reason) for _, reason in results), results
    result = command("capture_inputs.py", "--replay-root", root)
    assert (result.code, result.err, result.summary["failed"]) == (1, "", 2)


def test_wrong_values_fail_with_the_worst_element(root):
    with_reference(root, edited("y.to(torch.bfloat16)", "(y + 1).to(torch.bfloat16)"))
    for status, reason in statuses(root):
        assert status == "fail" and "y: " in reason and "elements beyond the bound, worst at [" in reason


def test_wrong_integers_fail_although_the_tolerance_is_wide(root):
    with_reference(root, edited(".to(torch.int32)", ".to(torch.int32) + 1"))
    assert all(status == "fail" and reason.startswith("count: ") for status, reason in statuses(root))


OVERFLOW = edited("weight.float()) * scale", "weight.float()) * scale * (float('inf') if len(x) == 5 else 1)")


def test_a_reference_that_overflows_is_said_of_that_workload_alone(root):
    with_reference(root, OVERFLOW)
    results = {result.comparisons["count"].elements: result for result in replay_root(root, "cpu")}
    assert (results[3].status, results[5].status) == ("pass", "fail")
    assert "non-finite" in results[5].reason
    line = next(line for line in replay.replay_troubles(list(results.values())))
    assert results[5].workload in line and "non-finite" in line


def test_validation_names_the_workload_whose_reference_overflows(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    with_reference(root, OVERFLOW)
    run = toy.start_run(tmp_path / "run")
    for rows in (3, 5):
        toy.play_case(run, root, f"rows{rows}", rows)
    results = list(validate_run(run, root, "cpu"))
    failed = next(result for result in results if result.status != "pass")
    with pytest.raises(CaptureError, match=f"1 outside; {toy.NAME} {failed.workload}: y: .* non-finite") as caught:
        require_passed(results, str(run.root))
    assert "solution" not in str(caught.value)
    assert json.loads((run.root / "validation" / f"{failed.workload}.json").read_text())["passed"] is False


def test_validation_names_the_workload_whose_reference_raises(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    run = toy.start_run(tmp_path / "run")
    toy.play_case(run, root, "rows3", 3)
    with_reference(root, edited("rows = ids.to(torch.int64)", "raise MemoryError('too large')"))
    results = list(validate_run(run, root, "cpu"))
    with pytest.raises(CaptureError, match=f"{run.calls()[0].stem}: .*found MemoryError: too large"):
        require_passed(results, str(run.root))
    assert not (run.root / "validation").exists()


def test_validation_of_no_rows_is_not_a_pass(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    run = toy.start_run(tmp_path / "run")
    toy.play_case(run, root, "empty", 0)
    (result,) = validate_run(run, root, "cpu")
    assert result.status == "fail" and "nothing to compare" in result.reason


def test_validation_refuses_a_recipe_that_does_not_give_the_weight(tmp_path):
    root = toy.toy_root(tmp_path / "root")
    run = toy.start_run(tmp_path / "run")
    toy.play_case(run, root, "rows3", 3)
    (path,) = run.calls()
    call = json.loads(path.read_text())
    call["record"]["generated"]["weight"]["seed"] = 8
    write_json(path, call)
    with pytest.raises(CaptureError, match="the tensor that recipe toy.weight generates; found other bytes"):
        list(validate_run(run, root, "cpu"))


def test_what_is_not_here_is_skipped_with_the_remedy(root):
    first, second = read_workloads(root, read_definition(root / DEFINITION))
    weight = root / first["inputs"]["weight"]["path"]
    weight.unlink()
    for status, reason in statuses(root):
        assert status == "skipped"
        assert reason.startswith("not materialised: ") and "materialize_seeded.py" in reason
    weight.write_bytes(toy.weight_file())
    path = root / first["inputs"]["x"]["path"]
    path.write_bytes(POINTER_FIRST_LINE + f"\noid sha256:{path.stem}\nsize 9\n".encode())
    (root / second["inputs"]["x"]["path"]).unlink()
    (one, why_one), (two, why_two) = statuses(root)
    assert (one, two) == ("skipped", "skipped")
    assert why_one.startswith("not fetched: git lfs pull")
    assert why_two == f"missing: {second['inputs']['x']['path']}"
    result = command("capture_inputs.py", "--replay-root", root)
    assert result.code == 1, "nothing replayed is not a pass"
    assert (result.summary["replayed"], result.summary["skipped"]) == (0, 2)


def test_contest_workloads_without_engine_outputs_are_skipped(root):
    write_captures(root, [record | {"class": "contest", "outputs": {}} for record in read_captures(root)])
    assert statuses(root) == [("skipped", "imported without engine outputs")] * 2


def test_broken_trees_give_an_error_per_workload_or_one_line(root):
    first, second = read_workloads(root, read_definition(root / DEFINITION))
    os.truncate(root / first["inputs"]["x"]["path"], 20)
    outside = root.parent / "outside"
    path = root / second["inputs"]["x"]["path"]
    path.rename(outside)
    path.symlink_to(outside)
    (one, why_one), (two, why_two) = statuses(root)
    assert (one, two) == ("error", "error") and "a truncated file" in why_one and "a path inside" in why_two


@pytest.mark.parametrize(
    "name,line,words",
    [
        ("captures.jsonl", "{}", "captures.jsonl:3: expected a capture record"),
        ("captures.jsonl", "x", "captures.jsonl:3: expected valid JSON"),
        (f"workloads/toy/{toy.NAME}.jsonl", "{}", ":3: expected a workload of"),
        (f"workloads/toy/{toy.NAME}.jsonl", '{"workload": 3}', ":3: expected"),
    ],
)
@pytest.mark.parametrize(
    "script,option",
    [("capture_inputs.py", "--replay-root"), ("materialize_seeded.py", "--root"), ("verify.py", "--root")],
)
def test_broken_records_stop_every_reader_with_their_line(root, script, option, name, line, words):
    with open(root / name, "a") as stream:
        stream.write(line + "\n")
    result = command(script, option, root)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


def test_a_workload_without_record_is_an_error(root):
    write_captures(root, read_captures(root)[:1])
    assert sorted(status for status, _ in statuses(root)) == ["error", "pass"]


def test_a_missing_task_is_an_error_because_no_tolerance_is_made_up(root):
    (root / "tasks" / f"{toy.NAME}.json").unlink()
    for status, reason in statuses(root):
        assert status == "error" and "expected a file; found nothing" in reason


def test_unknown_devices():
    with pytest.raises(EnvironmentMissing, match="a device cuda:63"):
        require_device("cuda:63")
    require_device("cpu")


def test_a_traceback_of_a_reference_shows_its_line(dataset):
    source = "def run(x, weight, ids, scale):\n    return 1 // 0\n"
    definition = read_definition(dataset / DEFINITION) | {"reference": source}
    with pytest.raises(ReplayError, match="found ZeroDivisionError") as caught:
        call_reference(definition, dict.fromkeys(definition["inputs"]))
    assert "return 1 // 0" in "".join(traceback.format_exception(caught.value))


def test_the_reference_sees_inputs_by_the_names_of_the_definition(dataset):
    definition = read_definition(dataset / DEFINITION)
    inputs, outputs = toy.toy_call(4)
    shuffled = dict(reversed(inputs.items()))
    results = definitions.call_reference(definition, shuffled)
    assert list(results) == ["y", "count"] and torch.equal(results["count"], outputs["count"])


def test_the_table_counts_and_shows_the_worst_figures(root):
    with_reference(root, OVERFLOW)
    results = list(replay_root(root, "cpu"))
    (row,) = replay.replay_rows(results)
    assert (row["workloads"], row["passed"], row["skipped"], row["class"]) == (2, 1, 0, "seeded")
    assert row["max abs error"] == "0" and not math.isnan(float(row["relative rms"].rstrip("%")))
    assert replay.replay_counts(results) == {"replayed": 2, "failed": 1, "skipped": 0}


@pytest.mark.parametrize("device", ["meta", "nonsense", "cuda:99"])
def test_a_device_that_holds_no_values_is_refused(device):
    with pytest.raises(EnvironmentMissing, match=f"expected a device {device}"):
        require_device(device)
