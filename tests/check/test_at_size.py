"""The benchmark at the published size, run at a tiny size: generated trees are sound, tools are measured."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.commands import SCRIPTS, command
from inference_kernels.core import hashing

REPOSITORY = SCRIPTS.parent
BENCHMARKS = REPOSITORY / "benchmarks"
GENERATE = """
import sys
from pathlib import Path
from generated_release import BANKS, Tree
Tree(Path(sys.argv[1]), float(sys.argv[3]), 0.01, sys.argv[2], BANKS).write()
"""


def generate(root, fill, share=0.01):
    subprocess.run([sys.executable, "-c", GENERATE, root, fill, str(share)], cwd=BENCHMARKS, check=True, timeout=120)
    return root


@pytest.mark.parametrize("fill", ["holes", "pointers"])
def test_generated_trees_are_sound_and_grow(fill, tmp_path):
    root = generate(tmp_path / "root", fill)
    first = command("check_workload_inputs.py", "--root", root).summary
    assert (first["errors"], first["warnings"], first["checked"]) == (0, 0, 21)
    assert first["classes"] == {"published": 19, "contest": 2, "seeded": 0}
    assert bool(first["blobs"]["pointers"]) == (fill == "pointers")
    grown = command("check_workload_inputs.py", "--root", generate(root, fill, 0.02)).summary
    assert grown["errors"] == 0 and grown["checked"] > first["checked"]


def test_the_plan_has_the_published_counts():
    source = "from generated_release import PLAN; import json; print(json.dumps(list(PLAN.items())))"
    done = subprocess.run([sys.executable, "-c", source], cwd=BENCHMARKS, check=True, capture_output=True, timeout=60)
    plan = dict(json.loads(done.stdout))
    assert set(plan) == {path.stem for path in (REPOSITORY / "definitions").glob("*/*.json")}
    assert sum(entry[0] for entry in plan.values()) == 1104
    assert sum(entry[0] for name, entry in plan.items() if name.startswith("gdn_")) == 154


def test_records_only_tools_are_measured(tmp_path):
    output = tmp_path / "figures.json"
    options = [
        "--tree",
        "bytes",
        "--share",
        "0.01",
        "--rows",
        "0.01",
        "--scratch",
        str(tmp_path),
        "--output",
        str(output),
    ]
    tools = ("check of pointers", "diff", "pull plan", "pull plan within 1 GB", "publish plan")
    for tool in tools:
        options += ["--tool", tool]
    subprocess.run([sys.executable, "bench_at_size.py", *options], cwd=BENCHMARKS, check=True, timeout=300)
    (row,) = json.loads(output.read_text())["trees"]
    assert set(row["tools"]) == set(tools) and row["workloads"] == 21
    assert all(figures["peak_mb"] > 0 for figures in row["tools"].values())
    assert not list(tmp_path.glob("bench-at-size-*"))


def test_hashing_stopped_early_leaves_the_files_that_wait(tmp_path, monkeypatch):
    """One worker may hold the second file when the reader stops; the third and fourth are not read."""
    started, go = [], threading.Event()

    def slow(path):
        started.append(path)
        if len(started) > 1:
            go.wait(10)
        return "digest"

    monkeypatch.setattr(hashing, "sha256_file", slow)
    results = hashing.hash_files([tmp_path / str(number) for number in range(9)], 1)
    assert next(results) == (tmp_path / "0", "digest")
    shutdown = ThreadPoolExecutor.shutdown
    monkeypatch.setattr(
        ThreadPoolExecutor,
        "shutdown",
        lambda pool, **options: (shutdown(pool, wait=False, **options), go.set(), shutdown(pool)),
    )
    results.close()
    assert len(started) <= 2
