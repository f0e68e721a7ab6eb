"""The judge's single rules: statistics, selections, outputs, GPUs, solutions, verdicts."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import judge_toy, toy
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.errors import NotFound, SchemaError
from inference_kernels.core.locks import lock_path
from inference_kernels.core.schema import parameter_count
from inference_kernels.judge.candidate import folder_solution, read_candidate, require_sound
from inference_kernels.judge.checks import describe_selection, untouched_elements
from inference_kernels.judge.duel import require_whole, single_duel_warning, speedup, verdict
from inference_kernels.judge.gpu import parse_listing, resolve, same_uuid
from inference_kernels.judge.stats import geometric_mean, quantile, summarise
from inference_kernels.judge.verdicts import CannotJudge, Rejected
from inference_kernels.judge.worker.outputs import check_memory, check_output, output_list

LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-1a2b3c4d-0000-0000-0000-000000000001)
GPU 1: NVIDIA A100 (UUID: GPU-1a2b9999-0000-0000-0000-000000000002)
  MIG 1g.10gb     Device  0: (UUID: MIG-77770000-0000-0000-0000-000000000003)
  MIG 1g.10gb     Device  1: (UUID: MIG-77771111-0000-0000-0000-000000000004)
"""


@pytest.fixture
def toy_definition(tmp_path):
    return load_definition(toy.toy_root(tmp_path / "dataset"), toy.NAME)


# Statistics


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [1.0],
        [1.0, 2.0, 3.0],
        [1.0, float("nan")],
        [1.0, float("inf")],
        [1.0, 0.0],
        [1.0, -2.0],
        [1.0, True],
        [1.0, "2"],
    ],
)
def test_samples_that_cannot_be_times_are_refused(bad):
    with pytest.raises(Rejected, match="bad_samples"):
        summarise(bad, 2)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_agree_with_torch(values, share):
    expected = torch.tensor(values, dtype=torch.float64).quantile(share).item()
    assert quantile(sorted(values), share) == pytest.approx(expected, rel=1e-9)


def test_a_drifting_or_spread_series_earns_a_warning():
    steady = summarise([1000.0 + index % 3 for index in range(30)], 30)
    drifting = summarise([1000.0 + 10 * index for index in range(30)], 30)
    assert steady.warnings == [] and steady.median_us == pytest.approx(1.001)
    assert any("drift" in text for text in drifting.warnings)
    assert any("spread" in text for text in summarise([1000.0, 5000.0] * 10, 20).warnings)


def test_geometric_mean_of_inverse_speedups_is_one():
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)


# Selections


@pytest.mark.parametrize(
    "row, words",
    [
        ([1, 3, 9, -1], "out of range"),
        ([1, -2, 3, -1], "out of range"),
        ([1, 1, 3, -1], "twice"),
        ([1, -1, 3, -1], "padding"),
        ([1, 3, 5, -1], "another set"),
        ([1, 3, -1, -1], "another set"),
        ([4, 3, 1, -1], "increasing order"),
    ],
)
def test_a_wrong_selection_is_described(row, words):
    expected = torch.tensor([[0, 1, 2, 3], [1, 3, 4, -1]])
    actual = expected.clone()
    actual[1] = torch.tensor(row)
    found = describe_selection(actual, expected, 8)
    assert words in found and "row 1" in found
    assert describe_selection(expected, expected, 8) == ""


# Outputs


def test_only_dense_tensors_of_the_declared_form_pass():
    spec = {"shape": [2, 3], "dtype": "float32"}
    check_output("y", torch.zeros(2, 3), spec, "cpu")
    right = torch.zeros(2, 3)
    for value in (
        torch.zeros(3, 2),
        right.double(),
        torch.zeros(3, 2).t(),
        right.to_sparse(),
        right.tolist(),
        torch.nn.Parameter(right),
        torch.zeros(1, 3).expand(2, 3),
        right.to("meta"),
    ):
        with pytest.raises(Rejected, match="bad_output"):
            check_output("y", value, spec, "cpu")


def test_output_counts_and_shared_memory():
    value = torch.zeros(4)
    assert output_list(value, 1) == [value] and len(output_list((value, value), 2)) == 2
    with pytest.raises(Rejected, match="2 outputs instead of 1"):
        output_list([value, value], 1)
    check_memory({"a": value[:2], "b": value[2:]}, {"x": torch.zeros(4), "scale": 0.5})
    for outputs, inputs in (({"a": value, "b": value[2:]}, {}), ({"a": value[1:]}, {"x": value[:2]})):
        with pytest.raises(Rejected, match="shares memory"):
            check_memory(outputs, inputs)


def test_poison_is_recognised_by_all_bytes_of_a_wrong_element():
    right = torch.ones(3, 4, dtype=torch.bfloat16)
    actual = right.clone()
    assert untouched_elements(actual, right, 0xFF) == 0
    actual.view(torch.uint8)[1, :4] = 0xFE
    assert untouched_elements(actual, right, 0xFF) == 2 and untouched_elements(actual, right, 0xA5) == 0
    padded = torch.full((4,), -1, dtype=torch.int32)  # legal ids that look like the poison
    assert untouched_elements(padded, padded, 0xFF) == 0


# GPU names


def test_gpus_are_found_by_unique_prefix_also_mig():
    assert [gpu.uuid[:5] for gpu in parse_listing(LISTING)] == ["GPU-1", "GPU-1", "MIG-7", "MIG-7"]
    assert resolve("gpu-1A2B3", LISTING).name == "NVIDIA H200"
    mig = resolve("MIG-77771", LISTING)
    assert mig.physical.startswith("GPU-1a2b9999") and mig.uuid.startswith("MIG-77771111")


@pytest.mark.parametrize(
    "prefix, words", [("GPU-1a2b", "ambiguous"), ("GPU-ffff", "none of"), ("", "ambiguous"), ("0", "none of")]
)
def test_an_unclear_gpu_is_refused_with_the_choices(prefix, words):
    with pytest.raises(CannotJudge, match=words) as caught:
        resolve(prefix, LISTING)
    assert "GPU-1a2b3c4d" in caught.value.line()


def test_the_listing_order_does_not_change_the_lock(tmp_path):
    lines = LISTING.splitlines(keepends=True)
    other = "".join([lines[1].replace("GPU 1", "GPU 0"), *lines[2:], lines[0].replace("GPU 0", "GPU 1")])
    paths = {lock_path(tmp_path, resolve("MIG-77770", text).physical) for text in (LISTING, other)}
    assert len(paths) == 1


def test_uuids_compare_with_and_without_prefix():
    assert same_uuid("GPU-ab", "AB".lower()) and not same_uuid("GPU-ab", "GPU-ac")


# Solutions


def fault(solution: dict, definition: dict) -> str:
    with pytest.raises(Rejected) as caught:
        require_sound(solution, definition)
    assert caught.value.status == "build_error"
    return caught.value.detail


def test_faults_that_need_no_import_are_named(toy_definition):
    sound = judge_toy.solution(judge_toy.HONEST)
    require_sound(sound, toy_definition)
    missing = json.loads(json.dumps(sound))
    del missing["spec"]["destination_passing_style"]
    assert "spec.destination_passing_style; found none" in fault(missing, toy_definition)
    short = judge_toy.solution("def run(x):\n    pass\n")
    assert "expected 4 parameters of run" in fault(short, toy_definition)
    for words, change in (
        ("expected 6 parameters of run", {"dps": True}),
        ("Entry source", {"entry_point": "other.py::run"}),
        ("no_such_package", {"dependencies": ["no_such_package>=1"]}),
        ("spec.language", {"language": "cobol"}),
    ):
        assert words in fault(judge_toy.solution(judge_toy.HONEST, **change), toy_definition)
    assert "sources" in fault(sound | {"sources": []}, toy_definition)
    assert "did you mean 'author'" in fault(sound | {"auhtor": "x"}, toy_definition)


def test_parameters_are_counted_without_import():
    assert parameter_count("def run(a, b, /, c):\n    pass", "run") == 3
    assert parameter_count("def run(*all):\n    pass", "run") is None
    assert parameter_count("def other():\n    pass", "run") is None
    assert parameter_count("def run(:", "run") is None


def test_a_folder_becomes_a_solution(toy_definition, tmp_path):
    folder = tmp_path / "fast"
    folder.mkdir()
    (folder / "main.py").write_text("import triton\n\n\ndef run(x, weight, ids, scale, y, count):\n    ...\n")
    (folder / "part.py").write_text("")
    made = folder_solution(folder, toy_definition)
    assert made["spec"]["destination_passing_style"] is True and made["spec"]["language"] == "triton"
    assert [item["path"] for item in made["sources"]] == ["main.py", "part.py"] and made["name"] == "fast"
    require_sound(made, toy_definition)


def test_unclear_candidates_cannot_be_judged(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "main.py").write_text("def run():\n    pass\n")
    (tmp_path / "list.json").write_text("[]")
    for name, task in (("gone.json", None), ("empty", toy.NAME), ("full", None), ("list.json", None)):
        with pytest.raises((CannotJudge, NotFound, SchemaError)):
            read_candidate(tmp_path / name, tmp_path, task)


# Verdicts


def record(workload: str, status: str, median: float, size: int = 1) -> dict:
    return {
        "workload": workload,
        "status": status,
        "detail": "",
        "timed": "launch",
        "group_axis": "N",
        "axes": {"N": size},
        "timing": {"launch": {"median_us": median}},
    }


def test_the_speedup_of_eager_calls_is_that_of_paired_samples():
    """Not of the medians, 20 and 20: the host was slow in the second call of both."""
    one, other = (
        record("a", "pass", 20.0) | {"timed": "call", "timing": {"call": {"median_us": 20.0, "samples": times}}}
        for times in ([10.0, 30.0, 20.0], [20.0, 60.0, 10.0])
    )
    assert speedup(one, other) == pytest.approx(2) and speedup(other, one) == pytest.approx(0.5)
    assert speedup(one | {"status": "stale"}, other) is None and speedup(one, other | {"timing": {}}) is None


def test_speedups_are_grouped_and_averaged_geometrically():
    pairs = [
        (record("a", "pass", 10.0), record("a", "pass", 40.0)),
        (record("b", "pass", 40.0, 2), record("b", "pass", 10.0, 2)),
    ]
    result = verdict(pairs)
    assert result["accepted"] and result["complete"] and result["not_judged"] == 0
    assert result["groups"] == {"N=1": pytest.approx(4.0), "N=2": pytest.approx(0.25)}
    assert result["geometric_mean"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "status, detail, remedy",
    [
        ("not_materialised", "not fetched: git lfs pull --include 'x'", "git lfs pull --include 'x'"),
        ("not_materialised", "not materialised: python materialize.py", "python materialize.py"),
        ("not_materialised", "missing: blob/workloads/toy/0.safetensors", "sync_hub.py pull --definition toy"),
        ("not_materialised", "missing: blob/starter/toy/0.safetensors", "git checkout -- blob/starter/toy"),
        ("no_reference", "the reference's output y is not finite", "repair the reference"),
    ],
)
def test_a_part_is_not_the_whole(status, detail, remedy):
    """Not judged in the first duel or in the last, alone or beside one that passes: no acceptance, no rejection."""
    good = record("a", "pass", 10.0), record("a", "pass", 40.0)
    void = record("b", status, 1.0) | {"definition": "toy", "detail": detail}
    passed_once = record("b", "pass", 1.0), record("b", "pass", 1.0)
    for pairs in ([good, (void, void)], [(void, {})], [good, passed_once, good, (void, void)]):
        result = verdict(pairs)
        assert not result["accepted"] and not result["complete"] and not result["rejected"]
        assert result["judged"] == (good in pairs) and result["not_judged"] == 1
        (item,) = result["left_out"]
        assert item["workload"] == "b" and item["status"] == status and remedy in item["remedy"]
        with pytest.raises(CannotJudge) as refused:
            require_whole(result, "toy")
        assert f"1 of {len({one['workload'] for one, _ in pairs})} not judged: b" in refused.value.line()
        assert refused.value.line().endswith(item["remedy"])
    with pytest.raises(CannotJudge, match="found no workload"):
        require_whole(verdict([]), "toy")
    stale = record("c", "stale", 1.0), record("c", "pass", 1.0)
    assert verdict([(void, void), stale])["rejected"] and not verdict([(void, void), stale])["complete"]


def test_each_duel_has_a_mean_of_its_own():
    pairs = [
        (record("a", "pass", 10.0), record("a", "pass", 40.0)),
        (record("b", "pass", 10.0), record("b", "pass", 10.0)),
        (record("a", "pass", 10.0), record("a", "pass", 10.0)),
        (record("b", "pass", 20.0), record("b", "pass", 5.0)),
    ]
    result = verdict(pairs)
    assert result["duels"] == [pytest.approx(2.0), pytest.approx(0.5)] and result["geometric_mean"] == pytest.approx(
        1.0
    )
    assert verdict([])["duels"] == []


@pytest.mark.parametrize(
    "timer, timed, medians, why",
    [
        ("cuda_events", "launch", (29.0, 5.0), "launches below 30 us"),
        ("cuda_events", "launch", (29.0, 31.0), ""),
        ("cuda_events", "call", (290.0, 310.0), "eager calls"),
        ("host_clock", "launch", (29.0, 5.0), ""),
        ("host_clock", "call", (29.0, 5.0), ""),
    ],
)
def test_what_a_single_duel_cannot_tell_is_said(timer, timed, medians, why):
    pair = tuple(
        record("a", "pass", median)
        | {
            "environment": {"timer": timer},
            "timed": timed,
            "timing": {timed: {"median_us": median, "samples": [median]}},
        }
        for median in medians
    )
    found = single_duel_warning([pair])
    assert found.startswith(why) and bool(found) == bool(why)
    assert not single_duel_warning([(pair[0] | {"status": "stale"}, pair[1])])


def test_one_rejected_workload_rejects_and_nothing_judged_is_no_acceptance():
    rejected = verdict(
        [(record("a", "pass", 1.0), record("a", "pass", 1.0)), (record("b", "stale", 1.0), record("b", "pass", 1.0))]
    )
    assert not rejected["accepted"] and "b" not in rejected["speedups"]
    assert rejected["rejected"][0]["status"] == "stale"
    assert not verdict([])["accepted"]
