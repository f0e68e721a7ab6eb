"""The hostile corpus through the public ways in: every trick gets its verdict, every honest twin passes."""

import json
import subprocess
import sys

import pytest

from helpers import judge_toy, toy
from helpers.hostile_corpus import hostile_source
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.files import read_jsonl
from inference_kernels.judge.duel import duel, find_baseline, verdict
from inference_kernels.judge.judge import Judge, JudgeOptions
from inference_kernels.judge.verdicts import STATUSES, is_rejection
from inference_kernels.pages.hostile import CORPUS, hostile_page, read_corpus

ROWS = 24


def corpus(repository):
    return [row for row in read_corpus(repository) if not row["gpu"]]


def benchmark(repository, folder, honest: bool, rows: list[dict], *options: str) -> dict[str, dict]:
    """Records of `rows` (tricks or their twins) from one run of benchmark_solutions.py, by solution name."""
    root = judge_toy.judge_root(folder, (ROWS,))
    for row in rows:
        source = hostile_source(repository, row, honest)
        judge_toy.add_solution(root, judge_toy.solution(source, row["name"], row["dps"]))
    report, script = folder / "report.jsonl", repository / "scripts" / "benchmark_solutions.py"
    command = [sys.executable, script, "--root", root, "--gpu", "cpu", "--report", report, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    return {record["solution"]: record for _, record in read_jsonl(report)}


@pytest.fixture(scope="module")
def tricks(repository, tmp_path_factory):
    """Only the tricks that hang get short timeouts, so that a busy machine makes no other verdict."""
    every = corpus(repository)
    hanging = [row for row in every if row["verdict"] == "timeout"]
    quick = [row for row in every if row not in hanging]
    return benchmark(repository, tmp_path_factory.mktemp("tricks"), False, quick, "--memory-limit", "1") | benchmark(
        repository,
        tmp_path_factory.mktemp("hanging"),
        False,
        hanging,
        "--timeout",
        "3",
        "--definition",
        toy.NAME,
        "--call-timeout",
        "3",
    )


@pytest.fixture(scope="module")
def twins(repository, tmp_path_factory):
    return benchmark(repository, tmp_path_factory.mktemp("twins"), True, corpus(repository))


def wrong(records: dict[str, dict], wanted: dict[str, str]) -> dict[str, tuple[str, str, str]]:
    """name -> (status, wanted, detail) of every record with another status than wanted."""
    return {
        name: (records[name]["status"], status, records[name]["detail"])
        for name, status in wanted.items()
        if records[name]["status"] != status
    }


def test_every_trick_gets_its_verdict(repository, tricks):
    assert wrong(tricks, {row["name"]: row["verdict"] for row in corpus(repository)}) == {}
    assert tricks["toy_torch"]["status"] == "pass"


def test_every_honest_twin_passes(repository, twins):
    assert wrong(twins, {row["name"]: "pass" for row in corpus(repository)}) == {}


def test_records_are_complete(twins):
    record = twins["answer_in_prepare"]
    assert set(record["timing"]) == {"launch", "call"} and record["environment"]["timer"] == "host_clock"
    assert all(record["hashes"][key] for key in ("solution", "workload", "task"))
    assert record["checked_calls"]["call"] > 6 and record["checked_calls"]["launch"] > 3
    assert record["notes"] == [] and record["floor"]["bytes"] > 0
    json.dumps(record, allow_nan=False)


def test_the_duel_gives_the_same_verdicts(repository, tmp_path):
    """The way of judge_solution.py, which also keeps a baseline's worker beside the candidate's."""
    root = judge_toy.judge_root(tmp_path, (ROWS,), iterations=3)
    definition, found, baselines = load_definition(root, toy.NAME), {}, []
    rows = [row for row in corpus(repository) if row["verdict"] != "timeout"]
    with Judge(JudgeOptions(root, memory_gib=1)) as judge:
        baseline = find_baseline(root, judge.task(toy.NAME), None)
        for row in rows:
            source = hostile_source(repository, row, honest=False)
            candidate = judge_toy.solution(source, row["name"], row["dps"])
            pairs = list(duel(judge, definition, candidate, baseline, (), len(found) % 2))
            result = verdict(pairs)
            found[row["name"]] = pairs[0][0]
            assert result["accepted"] is False and result["geometric_mean"] is None, row["name"]
            baselines.append(pairs[0][1])
    assert all(other["status"] == ("pass" if other["checked_calls"] else "not_reached") for other in baselines)
    assert sum(other["status"] == "pass" for other in baselines) > len(rows) // 3
    late = {"late_zeros", "after_validation"}  # what they are caught with depends on how long they wait
    assert wrong(found, {row["name"]: row["verdict"] for row in rows if row["name"] not in late}) == {}
    assert all(is_rejection(found[name]["status"]) for name in late)


def test_the_corpus_is_large_and_its_table_is_the_page(repository):
    rows = read_corpus(repository)
    assert len(corpus(repository)) >= 40 and len({row["name"] for row in rows}) == len(rows)
    assert {row["verdict"] for row in rows} <= set(STATUSES)
    files = {path.stem for path in (repository / CORPUS).parent.glob("solutions/*.py")}
    assert files == {row["name"] for row in rows}
    page = hostile_page(repository)
    assert all(f"| `{row['name']}` | {row['group']} |" in page for row in rows)
