"""The contest importer end to end, on a miniature of the contest's dataset."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from helpers import contest_tree
from helpers.commands import command, require_one_line
from helpers.contest_tree import DECODE, PREFILL, WORKLOADS
from helpers.toy import tree_bytes
from inference_kernels.capture.run import RunFolder
from inference_kernels.contest import convert
from inference_kernels.contest import source as contest_source
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.layout import blob_files
from inference_kernels.core.records import read_captures, read_workloads
from inference_kernels.core.replay import replay_root
from inference_kernels.core.tensors import load_tensor, read_header
from inference_kernels.pages import build

SCRIPT = "import_mlsys26_gdn.py"


@pytest.fixture(scope="module", params=["flat", "nested"])
def imported(request, tmp_path_factory) -> Path:
    """A folder with the copy `tree`, the dataset `root` that received it, and conversions.json."""
    folder = tmp_path_factory.mktemp(request.param)
    contest_tree.contest_tree(folder / "tree", request.param)
    contest_tree.contest_root(folder / "root")
    result = run(folder, "--json", folder / "conversions.json")
    assert (result.code, result.err) == (0, ""), result
    assert (result.summary["new_workloads"], result.summary["failed"]) == (4, 0)
    return folder


@pytest.fixture
def fresh(tmp_path) -> Path:
    contest_tree.contest_tree(tmp_path / "tree", "nested")
    contest_tree.contest_root(tmp_path / "root")
    return tmp_path


def run(folder: Path, *more):
    return command(
        SCRIPT,
        "--source",
        folder / "tree",
        "--output-root",
        folder / "root",
        "--work-directory",
        folder / "work",
        *more,
    )


def records(folder: Path) -> dict[str, dict]:
    return {record["request"]["source_workload"]: record for record in read_captures(folder / "root")}


def workload(folder: Path, record: dict) -> dict:
    definition = load_definition(folder / "root", record["definition"])
    return {item["uuid"]: item for item in read_workloads(folder / "root", definition)}[record["workload"]]


def test_the_imported_dataset_passes_the_checker_and_replay_skips_it(imported):
    result = command("check_workload_inputs.py", "--root", imported / "root")
    assert (result.code, result.errors(), result.summary["classes"]["contest"]) == (0, [], 4)
    replayed = list(replay_root(imported / "root", "cpu"))
    assert {item.status for item in replayed} == {"skipped"} and len(replayed) == 4
    assert {item.reason for item in replayed} == {"imported without engine outputs"}


def test_every_tensor_is_the_contests_own_in_a_file_of_its_own(imported):
    for name, uuid, lead, bounds, state in WORKLOADS:
        record = records(imported)[uuid]
        inputs = workload(imported, record)["inputs"]
        expected = contest_tree.workload_tensors(lead, bounds, state)
        assert list(inputs) == list(load_definition(imported / "root", name)["inputs"])
        for key, item in inputs.items():
            if key == "scale":
                assert item == {"type": "scalar", "value": 0.08838834764831843}
                continue
            found = load_tensor(imported / "root" / item["path"])
            if key == "state" and not state:
                sequences = lead[0] if bounds is None else len(bounds) - 1
                assert found.equal(torch.zeros(sequences, 8, 128, 128))
            else:
                assert found.equal(expected[key]) and found.dtype == expected[key].dtype


def test_records_say_where_a_workload_comes_from_and_what_was_checked(imported):
    for name, uuid, lead, _, state in WORKLOADS:
        record = records(imported)[uuid]
        assert record["class"] == "contest" and record["outputs"] == {} and record["definition"] == name
        request = record["request"]
        assert request["source_file"] == f"workloads/gdn/{name}.jsonl"
        (file,) = request["source_tensors"]
        assert (imported / "tree" / file).is_file()
        assert request["revision"].startswith("not stated")
        zeros = "input state absent in the contest's workload: zeros written"
        assert (zeros in record["adaptations"]) != state
        dropped = "input cu_seqlens of the contest's workload left out: not in the definition"
        assert (dropped in record["adaptations"]) == (name == DECODE)
        figures = record["replay"]["errors"]
        assert figures["output"]["shape"] == [*lead, 8, 128] and figures["output"]["dtype"] == "bfloat16"
        assert all(item["non_finite"] == 0 and item["elements"] > 0 for item in figures.values())
        assert record["operation"]["phase"] == ("decode" if name == DECODE else "prefill")


def test_a_page_claims_no_comparison_with_an_engine(imported):
    records_of_one = [record for record in read_captures(imported / "root") if record["definition"] == DECODE]
    page = build.definition_page(imported / "root", load_definition(imported / "root", DECODE), records_of_one)
    rows = [line for line in page.splitlines() if "| contest | batch_size=" in line]
    assert len(rows) == 2 and all(row.endswith("| - | - | - |") for row in rows)


def test_a_second_import_changes_nothing(imported):
    before = tree_bytes(imported / "root")
    for _ in range(2):  # another revision is another run; then that run once more
        result = run(imported, "--revision", "0" * 40)
        assert (result.code, result.summary["new_workloads"], result.summary["new_tensors"]) == (0, 0, 0)
    assert tree_bytes(imported / "root") == before
    conversions = json.loads((imported / "conversions.json").read_text())
    assert [item["status"] for item in conversions] == ["converted"] * 4


def test_both_layouts_give_the_same_workloads(fresh, tmp_path):
    contest_tree.contest_tree(tmp_path / "other" / "tree", "flat")
    contest_tree.contest_root(tmp_path / "other" / "root")
    assert run(fresh).code == run(tmp_path / "other").code == 0
    for folder in ("workloads", "blob"):
        assert tree_bytes(fresh / "root" / folder) == tree_bytes(tmp_path / "other" / "root" / folder)


def test_a_killed_conversion_resumes_and_touches_the_dataset_only_at_the_end(fresh, monkeypatch):
    before, convert_one, calls = tree_bytes(fresh / "root"), convert._convert_one, []

    def interrupted(source, *more):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(source.case)
        return convert_one(source, *more)

    monkeypatch.setattr(convert, "_convert_one", interrupted)
    assert run(fresh).code == 130 and tree_bytes(fresh / "root") == before
    monkeypatch.setattr(
        convert, "_convert_one", lambda source, *more: (calls.append(source.case), convert_one(source, *more))[1]
    )
    result = run(fresh)
    assert (result.code, result.summary["new_workloads"]) == (0, 4)
    assert len(calls) == len(set(calls)) == 4


def test_tensors_left_by_a_kill_do_not_enter_the_run(fresh):
    sources = contest_source.read_tree(fresh / "tree", fresh / "root")
    settings = convert.run_settings(fresh / "root", "r", {}, [DECODE, PREFILL])
    started = RunFolder.open(fresh / "run", settings)
    convert._convert_one(sources[0], fresh / "tree", started, "cpu")  # the case is never finished
    resumed = RunFolder.open(fresh / "run", settings)
    assert list(resumed.calls()) == [] and not list((fresh / "run").rglob("*.safetensors"))


def test_a_reference_that_overflows_names_the_workload_and_blames_no_solution(fresh):
    bad = WORKLOADS[3][1]
    contest_tree.rewrite_tensor(fresh / "tree", bad, lambda tensors: tensors["state"].fill_(float("inf")))
    result = run(fresh, "--json", fresh / "conversions.json")
    assert result.code == 1 and (result.summary["failed"], result.summary["new_workloads"]) == (1, 3)
    (line,) = [line for line in result.findings if line.startswith("left out")]
    assert bad in line and f"workloads/gdn/{PREFILL}.jsonl:2" in line and "no solution was run" in line
    assert bad not in records(fresh)
    conversions = json.loads((fresh / "conversions.json").read_text())
    (failure,) = [item for item in conversions if item["status"] == "failed"]
    assert (failure["source"], failure["uuid"]) == (bad, None) and "finite" in failure["reason"]
    contest_tree.rewrite_tensor(fresh / "tree", bad, lambda tensors: tensors["state"].fill_(0.5))
    result = run(fresh)  # a repaired copy: only the missing workload is new
    assert (result.code, result.summary["new_workloads"]) == (0, 1)


def test_a_reference_that_raises_names_the_workload(fresh):
    path = fresh / "root" / "definitions" / "gdn" / f"{DECODE}.json"
    definition = json.loads(path.read_text())
    definition["reference"] = "def run(*inputs):\n    raise ValueError('no luck')\n"
    path.write_text(json.dumps(definition))
    result = run(fresh)
    assert result.code == 1 and result.summary["failed"] == 2 and result.summary["workloads"] == 2
    assert all("no luck" in line for line in result.findings if line.startswith("left out"))


def test_equal_tensors_under_two_uuids_become_one_workload(fresh):
    twin = "8add0000-0000-4000-8000-0000000000ff"
    (line,) = contest_tree.workload_file(fresh / "tree", DECODE).read_text().splitlines()[:1]
    contest_tree.add_line(fresh / "tree", DECODE, json.loads(line)["workload"] | {"uuid": twin})
    result = run(fresh)
    assert (result.summary["source_workloads"], result.summary["workloads"], result.code) == (5, 4, 0)
    assert twin not in records(fresh) and WORKLOADS[0][1] in records(fresh)


def test_tensors_that_the_starter_holds_are_not_stored_twice(fresh):
    assert run(fresh, "--store", "starter").code == 0
    files = blob_files(fresh / "root")
    assert {path.parts[-3] for path in files} == {"starter"} and all(read_header(path) for path in files)
    shutil.rmtree(fresh / "work")
    assert run(fresh, "--store", "workloads").code == 0
    assert blob_files(fresh / "root") == files


def test_a_dry_run_writes_nothing(fresh):
    before = tree_bytes(fresh)
    result = run(fresh, "--dry-run")
    assert (result.code, result.summary["workloads"]) == (0, 4) and tree_bytes(fresh) == before
    assert "cu_seqlens" in result.out and result.summary["bytes"] > 2**20


def test_an_unknown_device_is_refused(fresh):
    require_one_line(run(fresh, "--device", "nowhere"), "nowhere")
