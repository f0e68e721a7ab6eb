"""Resuming a report: what counts as finished, a torn last line, and damage elsewhere. CPU only."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import judge_toy, toy
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.records import read_captures, read_workloads
from inference_kernels.core.workloads import Available
from inference_kernels.judge.bench import Limits
from inference_kernels.judge.judge import Judge, JudgeOptions
from inference_kernels.judge.record import work_hashes
from inference_kernels.judge.report import finished_work, start_report
from inference_kernels.judge.verdicts import CannotJudge

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MACHINE = {"host": "here", "gpu": "cpu", "packages": {"torch": "2"}, "timer": "host_clock"}


@pytest.fixture(scope="module")
def finished_root(tmp_path_factory):
    return judge_toy.judge_root(tmp_path_factory.mktemp("toy"), iterations=3)


@pytest.fixture
def root(finished_root, tmp_path):
    return Path(shutil.copytree(finished_root, tmp_path / "root"))


def row(workload: str = "w", status: str = "pass", **fields) -> dict:
    hashes = {"solution": "s", "workload": workload}
    return {
        "definition": "d",
        "solution": "s",
        "workload": workload,
        "status": status,
        "hashes": hashes,
        "environment": MACHINE,
    } | fields


def done(*hashes: dict) -> set:
    return {frozenset(value.items()) for value in hashes}


# What a record depends on


def hashes_of(root: Path, solution: dict | None = None, limits: Limits | None = None, **options) -> dict[str, str]:
    definition = load_definition(root, toy.NAME)
    item = Available(read_workloads(root, definition)[0], "seeded")
    judge = Judge(JudgeOptions(root, limits=limits or Limits(), **options))
    judge.server.__exit__()
    return work_hashes(judge, definition, solution or judge_toy.solution(judge_toy.HONEST), item)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "folder, old, new, changed",
    [
        ("tasks", '"rtol": 0.016', '"rtol": 0.015', {"task"}),
        ("tasks", '"iters": 3', '"iters": 4', {"task"}),
        ("tasks", '"required_matched_ratio": null', '"required_matched_ratio": 0.999', {"task"}),
        ("definitions/gdn", '"reference": "', '"reference": "# changed\\n', {"definition", "truth"}),
        ("definitions/gdn", '"description": "', '"description": "Changed. ', {"definition"}),
        ("workloads/gdn", '"value": 0.5', '"value": 0.25', {"workload"}),
    ],
)
def test_a_change_of_the_dataset_changes_the_hashes(root, folder, old, new, changed):
    before = hashes_of(root)
    (path,) = (root / folder).glob(f"{toy.NAME}.json*")
    edit(path, old, new)
    after = hashes_of(root)
    assert {name for name in before if before[name] != after[name]} == changed


def test_options_truth_and_solution_change_the_hashes(root):
    before, against_capture = hashes_of(root), hashes_of(root, against="capture")

    def changed(other: dict[str, str]) -> set[str]:
        return {name for name in before if before[name] != other[name]}

    assert changed(hashes_of(root)) == set()
    assert changed(hashes_of(root, limits=Limits(build=1, call=2))) == set()
    assert changed(hashes_of(root, limits=Limits(repeat=3))) == {"options"}
    assert changed(hashes_of(root, validation_only=True)) == {"options"}
    assert changed(hashes_of(root, judge_toy.solution(judge_toy.HONEST + "\n"))) == {"solution"}
    assert changed(against_capture) == {"truth"}
    output = read_captures(root)[0]["outputs"]["y"]["path"]
    edit(root / "captures.jsonl", output, f"{output[: -len('0.safetensors')]}{'ab'[output[-13] == 'a']}.safetensors")
    assert hashes_of(root, against="capture")["truth"] != against_capture["truth"]


# Reading a report


def test_the_last_record_of_a_workload_counts(tmp_path):
    path = tmp_path / "r.jsonl"
    changed = {"solution": "s", "workload": "w", "task": "other"}
    rows = [row(), row("v"), row(hashes=changed), row("u"), row("u", "mismatch")]
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    assert finished_work(path, MACHINE) == (done(row("v")["hashes"], changed), "")


@pytest.mark.parametrize("keep", [1, 40, -9])
@pytest.mark.parametrize("text", ["ü" * 40, "plain"])
def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path, keep, text):
    path = tmp_path / "r.jsonl"
    whole = json.dumps(row()).encode() + b"\n"
    path.write_bytes(whole + json.dumps(row("v", detail=text), ensure_ascii=False).encode()[:keep])
    found, warning = finished_work(path, MACHINE)
    assert found == done(row()["hashes"]) and warning.startswith(f"{path}:2: dropped the last line")
    assert path.read_bytes() == whole and finished_work(path, MACHINE) == (found, "")


def test_other_ends_of_a_report(tmp_path):
    """Zeros after a power cut, a first line that is torn, a whole record without its newline, an empty report."""
    path = tmp_path / "r.jsonl"
    whole = json.dumps(row()).encode() + b"\n"
    for content, kept in ((whole + b"\0" * 4096, whole), (whole[:50], b""), (whole[:-1], whole), (b"", b"")):
        path.write_bytes(content)
        found, warning = finished_work(path, MACHINE)
        assert path.read_bytes() == kept and found == (done(row()["hashes"]) if kept else set())
        assert bool(warning) == (content not in (whole[:-1], b""))


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[]",
        b"",
        b'{"status": "pa',
        b"\xff\xfe",
        json.dumps(row(status="great")).encode(),
        json.dumps(row(status=None)).encode(),
        json.dumps(row(hashes=None)).encode(),
        json.dumps(row(hashes={"task": []})).encode(),
        json.dumps(row(environment=[])).encode(),
        json.dumps(row(solution=5)).encode(),
    ],
)
def test_damage_elsewhere_is_named_with_its_line_and_nothing_is_changed(tmp_path, line):
    path = tmp_path / "r.jsonl"
    content = b"\n".join([json.dumps(row()).encode(), line, json.dumps(row("v")).encode(), b'{"torn'])
    path.write_bytes(content)
    with pytest.raises(SchemaError) as refused:
        finished_work(path, MACHINE)
    assert refused.value.line().startswith(f"{path}:2: ") and path.read_bytes() == content


@pytest.mark.parametrize(
    "key, value", [("host", "there"), ("timer", "cuda_events"), ("packages", {"torch": "3"}), ("driver", "550")]
)
def test_records_of_another_machine_or_timer_are_refused(tmp_path, key, value):
    path = tmp_path / "r.jsonl"
    content = json.dumps(row()) + "\n" + json.dumps(row("v", environment=MACHINE | {key: value})) + "\n{"
    path.write_text(content)
    with pytest.raises(CannotJudge, match=f":2: expected a report of this machine .{key}"):
        finished_work(path, MACHINE)
    assert path.read_text() == content


def test_a_report_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CannotJudge, match="expected a file"):
            start_report(path, resume=True)


# The command


def test_the_command_judges_again_what_has_changed(root, tmp_path):
    path = tmp_path / "r.jsonl"

    def resumed(*flags: str) -> tuple[int, str, str]:
        command = [SCRIPTS / "benchmark_solutions.py", "--root", root, "--gpu", "cpu", "--report", path, "--resume"]
        ended = subprocess.run(
            [sys.executable, *map(str, command), *flags], capture_output=True, text=True, timeout=120
        )
        return ended.returncode, ended.stdout, ended.stderr

    def counts(*flags: str) -> tuple[int, int]:
        code, out, errors = resumed(*flags)
        assert code == 0, out + errors
        found = json.loads(out.splitlines()[-1])
        return found["skipped"], found["passed"]

    assert counts("--validation-only") == (0, 2) and counts("--validation-only") == (2, 0)
    edit(root / "tasks" / f"{toy.NAME}.json", '"rtol": 0.016', '"rtol": 0.015')
    assert counts("--validation-only") == (0, 2)
    assert counts() == (0, 2)  # the report so far has no times
    path.write_bytes(path.read_bytes()[:-30])
    code, out, errors = resumed()
    assert code == 0 and '"skipped": 1, "passed": 1' in out and f"warning: {path}:6: dropped" in errors
    assert [json.loads(line)["status"] for line in path.read_text().splitlines()] == ["pass"] * 6
    with path.open("r+b") as stream:
        stream.write(b"#")
    code, _, errors = resumed()
    assert code == 2 and f"error: {path}:1: " in errors and "Traceback" not in errors
