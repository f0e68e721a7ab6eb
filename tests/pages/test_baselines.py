"""Summaries of benchmark reports: what they count and what they refuse."""

import json
import subprocess
import sys

import pytest

from inference_kernels.core.errors import SchemaError
from inference_kernels.pages.baselines import SUMMARY, cells, overview, page, read_rows, summarise

DEFINITION = "dense_gemm_bf16_nt_n4096_k4096"


def record(solution: str, workload: str, us: float | None, status: str = "pass", used: float = 0.5) -> dict:
    timing = {} if us is None else {"launch": {"median_us": us, "p10_us": us, "p90_us": us}}
    return {
        "solution": solution,
        "definition": DEFINITION,
        "workload": workload,
        "class": "seeded",
        "axes": {"M": 16},
        "status": status,
        "detail": "" if status == "pass" else "y: one\nelement",
        "timed": "launch",
        "timing": timing,
        "floor": {"microseconds": 10.0, "bytes": 1, "operations": 2.0},
        "comparisons": {"y": {"tolerance_used": used}},
        "environment": {
            "device": "NVIDIA H200",
            "torch": "2.11",
            "peaks": {"bf16_flops": 1.0},
            "packages": {"torch": "2.11", "triton": "3.6"},
        },
    }


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.jsonl"
    engine, triton = f"sglang_{DEFINITION}", f"triton_{DEFINITION}"
    records = [
        record(engine, "a", 40.0),
        record(engine, "b", 90.0),
        record(triton, "a", 5.0, "mismatch", 9.0),
        record(triton, "a", 20.0),
        record(triton, "b", None, "mismatch", 7.0),
    ]
    path.write_text("".join(json.dumps(item) + "\n" for item in records))
    return path


def test_rows_count_what_passed_and_compare_common_workloads(report):
    engine, triton = summarise([("starter", report)])
    assert (engine["passed"], engine["workloads"], engine["geomean_us"]) == (2, 2, 60.0)
    assert engine["speed_vs_sglang"] == 1.0 and engine["floor_ratio"] == 6.0
    assert triton["statuses"] == {"mismatch": 1, "pass": 1} and triton["geomean_us"] == 20.0
    assert triton["speed_vs_sglang"] == 2.0 and triton["floor_ratio"] == 2.0
    assert triton["worst_error"] == 0.5, "errors of what failed are no property of what passed"


def test_a_time_of_scattered_samples_is_marked(tmp_path):
    scattered = record("one", "a", 20.0)
    scattered["timing"]["launch"] |= {"p10_us": 7.0, "p90_us": 43.0}
    path = tmp_path / "report.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in (scattered, record("one", "b", 20.0))))
    row = summarise([("starter", path)])[0]
    assert row["unsteady"] == 1 and row["cases"][0]["p90_us"] == 43.0 and cells(row)[3] == "20 ~"
    assert overview([row])[0][4] == "20 ~"


def test_a_call_that_is_timed_eagerly_keeps_its_launch_time(tmp_path):
    eager = record("one", "a", 20.0) | {"timed": "call"}
    eager["timing"]["call"] = {"median_us": 90.0, "p10_us": 80.0, "p90_us": 99.0}
    eager["seconds"] = {"total": 3.0, "overhead": 1.2}
    (tmp_path / "report.jsonl").write_text(json.dumps(eager) + "\n")
    case = summarise([("starter", tmp_path)])[0]["cases"][0]
    assert (case["us"], case["launch_us"], case["overhead_s"]) == (90.0, 20.0, 1.2)


def test_data_with_other_labels_is_kept_apart(report):
    assert [row["data"] for row in summarise([("starter", report), ("large", report)])] == ["large", "starter"] * 2


def test_the_command_writes_what_the_page_shows(report, tmp_path, repository):
    root = tmp_path / "root"
    (root / "definitions").mkdir(parents=True)
    (root / "definitions" / "gemm").symlink_to(repository / "definitions" / "gemm")
    command = [
        sys.executable,
        repository / "scripts" / "summarise_results.py",
        f"starter={report}",
        "--output",
        root / SUMMARY,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["passed"] == 3
    text = page(root, read_rows(root))
    assert f"| `triton_{DEFINITION}` | starter | 1 of 2 (1 mismatch) | 20 | 2 | 2 | 50% |" in text
    assert f"- `triton_{DEFINITION}`: mismatch: y: one element" in text
    assert "n12288" not in text


@pytest.mark.parametrize("change", [lambda row: row.pop("class"), lambda row: row.update(more=1)])
def test_a_row_of_another_form_is_refused_by_line(report, tmp_path, change):
    rows = summarise([("starter", report)])
    change(rows[1])
    (tmp_path / SUMMARY).parent.mkdir(parents=True)
    (tmp_path / SUMMARY).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SchemaError, match="h200_baselines.jsonl:2"):
        read_rows(tmp_path)


def test_a_folder_stands_for_its_reports(report, tmp_path):
    assert summarise([("starter", tmp_path)]) == summarise([("starter", report)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SchemaError, match="reports"):
        summarise([("starter", tmp_path / "empty")])


def test_no_summary_is_no_row(tmp_path):
    assert read_rows(tmp_path) == []


def test_a_report_without_label_is_refused(repository, report):
    done = subprocess.run(
        [sys.executable, repository / "scripts" / "summarise_results.py", report], capture_output=True, text=True
    )
    assert done.returncode == 2 and "expected LABEL=PATH" in done.stderr


def test_the_overview_names_the_fastest_solution_that_passed_all(report):
    rows = summarise([("starter", report), ("large", report)])
    fastest = ["`sglang`", "60", "6"]
    assert overview(rows) == [[f"`{DEFINITION}`", "2", "6 of 8", *fastest, *fastest]]
    for row in rows:
        row["passed"] = 1 if row["data"] == "starter" else row["passed"]
    assert overview(rows) == [[f"`{DEFINITION}`", "2", "5 of 8", "-", "-", "-", *fastest]]
