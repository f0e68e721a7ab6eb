"""Curation of a small full capture: live and retired definitions, dense GEMM rows of two classes, masks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.toy import NAME, toy_dataset
from inference_kernels.check.dataset import check_root, summary
from inference_kernels.core import records
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_json, write_json
from inference_kernels.core.pack import pack
from inference_kernels.core.tasks import write_dev
from inference_kernels.core.tensors import save_tensor
from inference_kernels.release import curation

GEMM, ATTENTION, RETIRED = "toy_gemm", "toy_attention", "toy_retired"
REASON = "an engine never runs it; see toy_gemm"


def matrix(rows: int) -> torch.Tensor:
    return (torch.arange(rows * 2).reshape(rows, 2) % 13 / 8).to(torch.bfloat16)


def write_definition(root: Path, name: str, op_type: str, description: str) -> None:
    """C = A, with one variable axis M; a task and a readable reference beside it."""
    tensor = {"shape": ["M", "K"], "dtype": "bfloat16", "description": "rows"}
    path = root / "definitions" / op_type / f"{name}.json"
    write_json(
        path,
        {
            "name": name,
            "op_type": op_type,
            "description": description,
            "tags": ["model:toy"],
            "axes": {
                "M": {"type": "var", "description": "rows"},
                "K": {"type": "const", "value": 2, "description": "row length"},
            },
            "constraints": ["M >= 1"],
            "inputs": {"A": tensor},
            "outputs": {"C": tensor},
        },
    )
    path.with_suffix(".py").write_text('"""C = A."""\n\n\ndef run(A):\n    return A.clone()\n')
    task = read_json(root / "tasks" / f"{NAME}.json")
    write_json(
        root / "tasks" / f"{name}.json",
        task | {"definition": name, "workloads": f"workloads/{op_type}/{name}.jsonl", "group_axis": "M"},
    )


def add_call(root: Path, name: str, rows: int, data_class: str, mask: torch.Tensor | None = None) -> str:
    """Add a workload with its record; a mask is one more input, as in old captures."""
    tensors = {"A": matrix(rows)} | ({"mask": mask} if mask is not None else {})
    place = {key: {"type": "safetensors"} | reference(root, name, value) for key, value in tensors.items()}
    uuid = records.workload_uuid(name, place)
    old = records.read_captures(root)
    record = old[0] | {
        "workload": uuid,
        "definition": name,
        "class": data_class,
        "auxiliary": {},
        "outputs": {"C": reference(root, name, matrix(rows))},
        "adaptations": [],
        "statistics": {key: records.statistics(item.float()) for key, item in tensors.items()},
    }
    record.pop("generated", None)
    records.write_captures(root, [*old, record])
    definition = read_json(next((root / "definitions").glob(f"*/{name}.json")))
    path = root / "workloads" / definition["op_type"] / f"{name}.jsonl"
    lines = path.read_text() if path.exists() else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        lines + json.dumps(records.workload_line(name, {"axes": {"M": rows}, "inputs": place, "uuid": uuid})) + "\n"
    )
    return uuid


def reference(root: Path, name: str, value: torch.Tensor) -> dict[str, str]:
    digest, _ = save_tensor(root / "blob" / "starter" / name, value)
    return records.tensor_reference(f"blob/starter/{name}/{digest}.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = toy_dataset(tmp_path_factory.mktemp("full"))
    for name, op_type, text in (
        (GEMM, "gemm", "C = A."),
        (ATTENTION, "dense_attention", "C = A."),
        (RETIRED, "gemm", f"Retired: {REASON}. C = A."),
    ):
        write_definition(root, name, op_type, text)
    pack(root)
    shutil.copytree(
        root / "definitions" / "gemm",
        root / "retired" / "definitions" / "gemm",
        ignore=shutil.ignore_patterns(f"{GEMM}*"),
    )
    for rows, data_class in ((32, "published"), (4096, "published"), (4095, "published"), (16, "seeded")):
        add_call(root, GEMM, rows, data_class)
    add_call(root, RETIRED, 64, "published")
    add_call(root, ATTENTION, 6, "published")
    solution = root / "solutions" / "gemm" / f"sglang_{RETIRED}.json"
    write_json(solution, {"name": solution.stem, "definition": RETIRED, "sources": []})
    (solution.with_suffix("") / "main.py").parent.mkdir()
    (solution.with_suffix("") / "main.py").write_text("run = None\n")
    save_tensor(root / "blob" / "starter" / GEMM, matrix(3))
    return root


@pytest.fixture
def root(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "full")


def plan_of(root: Path) -> curation.CurationPlan:
    return curation.make_plan(root, curation.retired_reasons(root))


def workloads_of(root: Path, name: str) -> list[dict]:
    return records.read_workloads(root, read_json(next((root / "definitions").glob(f"*/{name}.json"))))


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_reasons_come_from_the_retired_definitions(repository):
    reasons = curation.retired_reasons(repository)
    assert len(reasons) == 5 and all(len(reason) > 20 for reason in reasons.values())
    assert "gdn_prefill_qk4_v8_d128_k_last" in reasons["gated_delta_rule_prefill_h48_dk128_dv128"]


def test_a_retired_definition_needs_a_reason(root):
    path = root / "retired" / "definitions" / "gemm" / f"{RETIRED}.json"
    write_json(path, read_json(path) | {"description": "C = A."})
    with pytest.raises(SchemaError, match="Retired: <reason>"):
        plan_of(root)


def test_planning_changes_nothing_and_says_why(root):
    before = tree(root)
    plan = plan_of(root)
    assert tree(root) == before
    assert [(item.item, item.reason) for item in plan.of("definition")] == [(RETIRED, f"retired: {REASON}")]
    reasons = sorted(item.reason for item in plan.of("workload"))
    assert reasons == ["M < 4096", "M < 4096", f"retired: {REASON}"]
    assert len(plan.of("record")) == 3
    # Three tensors that only dropped calls name (their input and output are one file), and the stray one.
    assert len(plan.of("tensor")) == 4 and all(item.bytes > 0 for item in plan.of("tensor"))
    assert plan.summary()["workloads_kept"] == 5


def test_small_rows_go_in_class_published_only(root):
    curation.apply(plan_of(root))
    assert sorted(item["axes"]["M"] for item in workloads_of(root, GEMM)) == [16, 4096]


def test_the_curated_tree_is_sound(root):
    assert summary(check_root(root, None, 2, lambda items, total, label: iter(items)))["errors"] > 0
    curation.apply(plan_of(root))
    state = check_root(root, None, 2, lambda items, total, label: iter(items))
    assert [finding.line() for finding in state.findings.items if finding.level != "note"] == []
    assert len(state.workloads) == 5
    for name in (
        f"definitions/gemm/{RETIRED}.json",
        f"definitions/gemm/{RETIRED}.py",
        f"tasks/{RETIRED}.json",
        f"workloads/gemm/{RETIRED}.jsonl",
        f"blob/starter/{RETIRED}",
        "solutions/gemm",
    ):
        assert not (root / name).exists(), name
    assert (root / "retired" / "definitions" / "gemm" / f"{RETIRED}.json").exists()


def test_applying_twice_changes_nothing(root):
    curation.apply(plan_of(root))
    before, plan = tree(root), plan_of(root)
    assert plan.empty
    curation.apply(plan)
    assert tree(root) == before


def test_a_kill_at_any_write_is_completed_by_the_next_run(root, tmp_path, monkeypatch):
    mask = torch.ones(6, 6, dtype=torch.bool)
    add_call(root, ATTENTION, 6, "published", mask)
    add_call(root, ATTENTION, 7, "published", mask)
    write_dev(root, GEMM, [item["uuid"] for item in workloads_of(root, GEMM)][:3])
    whole = shutil.copytree(root, tmp_path / "whole")
    curation.apply(plan_of(whole))
    expected, steps = tree(whole), 0
    while True:
        victim = shutil.copytree(root, tmp_path / f"victim{steps}")
        if not killed_after(monkeypatch, victim, steps):
            break
        curation.apply(plan_of(victim))
        assert tree(victim) == expected, f"killed after {steps} changes"
        steps += 1
    assert steps > 10


def killed_after(monkeypatch, root: Path, steps: int) -> bool:
    """Apply, and stop after `steps` changes of the disk; False if the work was done before."""

    class Killed(BaseException):
        pass

    count = 0

    def counted(original):
        def change(*arguments, **keywords):
            nonlocal count
            if count == steps:
                raise Killed
            count += 1
            return original(*arguments, **keywords)

        return change

    plan = plan_of(root)
    with monkeypatch.context() as patch:
        for name in ("write_captures", "write_workloads", "write_text"):
            patch.setattr(curation, name, counted(getattr(curation, name)))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        try:
            curation.apply(plan)
        except Killed:
            return True
    return False


def test_dev_lists_lose_what_is_gone(root):
    uuids = {item["axes"]["M"]: item["uuid"] for item in workloads_of(root, GEMM)}
    write_dev(root, GEMM, [uuids[32], uuids[4096], uuids[16]])
    curation.apply(plan_of(root))
    assert read_json(root / "tasks" / f"{GEMM}.json")["dev"] == [uuids[4096], uuids[16]]


def test_a_visible_mask_is_dropped(root):
    old = add_call(root, ATTENTION, 5, "published", torch.ones(5, 5, dtype=torch.bool))
    write_dev(root, ATTENTION, [old])
    plan = plan_of(root)
    new = plan.masks[old]
    curation.apply(plan)
    workload = next(item for item in workloads_of(root, ATTENTION) if item["uuid"] == new)
    assert list(workload["inputs"]) == ["A"]
    assert workload["uuid"] == records.workload_uuid(ATTENTION, workload["inputs"])
    record = next(item for item in records.read_captures(root) if item["workload"] == new)
    assert record["adaptations"] == ["mask: visible everywhere, dropped"]
    assert list(record["statistics"]) == ["A"]
    assert read_json(root / "tasks" / f"{ATTENTION}.json")["dev"] == [new]
    state = check_root(root, None, 2, lambda items, total, label: iter(items))
    assert summary(state)["errors"] == 0


def test_a_call_captured_with_and_without_mask_is_one_workload(root):
    plain = workloads_of(root, ATTENTION)[0]["uuid"]
    old = add_call(root, ATTENTION, 6, "published", torch.ones(6, 6, dtype=torch.bool))
    plan = plan_of(root)
    assert plan.masks == {old: plain}
    curation.apply(plan)
    assert [item["uuid"] for item in workloads_of(root, ATTENTION)] == [plain]
    record = next(item for item in records.read_captures(root) if item["workload"] == plain)
    assert record["adaptations"] == []


@pytest.mark.parametrize("hidden", [0, 24])
def test_a_mask_that_hides_something_is_refused(root, hidden):
    mask = torch.ones(25, dtype=torch.bool)
    mask[hidden] = False
    add_call(root, ATTENTION, 5, "published", mask.reshape(5, 5))
    with pytest.raises(SchemaError, match="visible everywhere"):
        plan_of(root)


def test_an_additive_mask_is_refused(root):
    """Zeros mean visible in an additive mask and hidden in a boolean one: the record cannot tell which."""
    for value in (0.0, -1e9):
        with pytest.raises(SchemaError, match="visible everywhere"):
            add_call(root, ATTENTION, 5, "published", torch.full((5, 5), value))
            plan_of(root)


def test_an_unrecorded_mask_is_refused(root):
    uuid = add_call(root, ATTENTION, 5, "published", torch.ones(5, 5, dtype=torch.bool))
    rows = records.read_captures(root)
    for row in rows:
        if row["workload"] == uuid:
            row["statistics"].pop("mask")
    records.write_captures(root, rows)
    with pytest.raises(SchemaError, match="no statistics"):
        plan_of(root)


def test_equal_tensors_are_counted(root):
    before = plan_of(root).duplicates
    add_call(root, ATTENTION, 4096, "published")
    after = plan_of(root).duplicates
    assert after["duplicate_paths"] == before["duplicate_paths"] + 1
    assert after["tensor_paths"] == before["tensor_paths"] + 1
    assert after["unique_tensors"] == after["tensor_paths"] - after["duplicate_paths"]


def test_records_without_workload_go(root):
    rows = records.read_captures(root)
    records.write_captures(root, [*rows, rows[0] | {"workload": "00000000-0000-5000-8000-000000000000"}])
    assert "00000000-0000-5000-8000-000000000000" in {item.item for item in plan_of(root).of("record")}


def test_workloads_without_record_are_refused(root):
    records.write_captures(root, [row for row in records.read_captures(root) if row["definition"] != GEMM])
    with pytest.raises(SchemaError, match="a record of every workload"):
        plan_of(root)


def test_no_dataset_is_refused(tmp_path):
    with pytest.raises(SchemaError, match="definitions/"):
        curation.make_plan(tmp_path, {})


def test_command(root):
    script = Path(curation.__file__).parents[2] / "curate.py"

    def run(*arguments: str) -> tuple[str, dict]:
        command = [sys.executable, script, "--root", root, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout, json.loads(done.stdout.splitlines()[-1])

    before = tree(root)
    output, totals = run()
    assert REASON in output and totals["workloads_dropped"] == 3 and not totals["applied"]
    assert run("--dry-run")[1] == totals and tree(root) == before
    assert run("--apply")[1] == totals | {"applied": True}
    assert run("--apply")[0].startswith("nothing to drop")


def test_the_repository_itself_is_curated(repository):
    plan = plan_of(repository)
    assert not (plan.of("definition") or plan.of("workload") or plan.of("record") or plan.masks)
