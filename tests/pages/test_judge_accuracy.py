"""The page of the judge's own accuracy: its figures from runs whose figures are known."""

import json
import math

from inference_kernels.pages.judge import SUMMARY, judge_page


def run(difference: float, percent: float, means: list[float], first: str) -> dict:
    return {
        "kernels": [{"kernel": "copy", "CUPTI us": 2.0, "difference us": difference, "percent": percent}],
        "state": "alone",
        "duels": [{"solution": "s", "first": first, "geometric_means": means}],
    }


def page(tmp_path, rows: list[dict]) -> str:
    found = {
        "what": "One host.",
        "bench_judge": {
            "command": "c",
            "note": "n.",
            "runs": [
                run(0.25, 12.5, [1.0, 1.21], "baseline"),
                run(-0.75, -37.5, [0.5, 1.0], "candidate"),
                run(0.5, 25.0, [], "baseline"),
            ],
        },
        "processes": {
            "command": "c",
            "note": "n",
            "rows": [{"shape": [64, 32, 16], "timer": "events", "mean us": 3.25}],
        },
        "two_hosts": {"command": "c", "note": "n", "rows": [{"what": "launches", "pairs": 3}]},
        "eager_calls": {
            "command": "c",
            "note": "n",
            "rows": [{"host": "a host", "calls on end": 5, "CPU": "any", "solution": "s", "ratios": [0.5, 1.0, 1.25]}],
        },
        "turns": {
            "command": "c",
            "note": "n",
            "rows": [
                {
                    "host": "a host",
                    "solution": "s",
                    "calls on end": 5,
                    "CPU": "one",
                    "ratios of medians": [math.exp(0.03), math.exp(-0.04)],
                    "medians of ratios": [],
                }
            ],
        },
        "dev": {"command": "c", "note": "n", "seconds": {"gemm": 24.5}},
        "corpus": {"command": "c", "note": "n", "tests": 5, "passed": 4, "of these": {"tricks": 4, "others": 1}},
    }
    path = tmp_path / SUMMARY
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(found))
    return judge_page(tmp_path, rows, "b.jsonl")


def test_figures_of_the_page(tmp_path):
    cases = [{"status": "pass", "overhead_s": seconds} for seconds in (1.0, 2.0, 3.0)]
    cases += [{"status": "mismatch", "overhead_s": 9.0}, {"status": "pass"}]
    text = page(
        tmp_path,
        [
            {"definition": "gemm", "cases": cases[:2]},
            {"definition": "gemm", "cases": cases[2:]},
            {"definition": "older", "cases": [{"status": "pass"}]},
        ],
    )
    assert "| copy | 2.0 | 0.25 | -0.75 | 12.50 | -37.50 |" in text
    assert "| `s` | baseline | 2 | 1.1000 | 1.2100 | alone |" in text
    assert "| shape | timer | mean us |" in text and "| 64 x 32 x 16 | events | 3.25 |" in text
    assert "| a host | 5 | any | `s` | 3 | 0.8550 | 0.5000 |" in text
    assert "| a host | `s` | 5 | one | 3.5 | - |" in text
    assert "| `s` | candidate | 2 | 0.7071 | 0.5000 | alone |" in text
    assert "| `gemm` | 3 | 2.00 | 3.00 | 2 |\n| all | 3 | 2.00 | 3.00 | 2 |" in text and "older" not in text
    assert text.endswith("`c`, n: 4 of 5 passed (4 tricks, 1 others).\n") and "| `gemm` | 24.5 |" in text
