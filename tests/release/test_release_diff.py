"""Differences of two releases: what came, went or changed is found, once, and nothing else."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import toy
from helpers.commands import command, require_one_line
from inference_kernels.release import diff

SCRIPT = "diff_releases.py"


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    return toy.toy_dataset(tmp_path_factory.mktemp("release"))


@pytest.fixture
def pair(release, tmp_path) -> tuple[Path, Path]:
    for name in ("old", "new"):
        shutil.copytree(release, tmp_path / name)
    return tmp_path / "old", tmp_path / "new"


def compare(pair: tuple[Path, Path]) -> tuple[dict, list[tuple]]:
    report = pair[1].parent / "report.json"
    result = command(SCRIPT, *pair, "--json", report)
    assert (result.code, result.err) == (0, "")
    written = json.loads(report.read_text())
    assert {key: value for key, value in written.items() if key != "changes"} == result.summary
    return result.summary, [(item["kind"], item["name"], item["change"], item["detail"]) for item in written["changes"]]


def edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, values: list[dict]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def test_equal_releases_have_no_difference(pair):
    summary, changes = compare(pair)
    assert changes == [] and summary["differences"] == 0 and summary["classes"][0]["seeded"] == 2
    assert command(SCRIPT, *pair).findings == ["no difference"]


def test_spacing_and_key_order_are_no_difference(pair):
    for path in [*pair[1].rglob("definitions/*/*.json"), *pair[1].rglob("tasks/*.json")]:
        value = json.loads(path.read_text())
        path.write_text(json.dumps(dict(reversed(value.items())), indent=7))
    assert compare(pair)[1] == []


def test_a_tolerance_is_told_with_both_values(pair):
    edit(pair[1] / "tasks" / f"{toy.NAME}.json", lambda task: task["tolerance"].update(atol=0.5))
    assert compare(pair)[1] == [("tolerance", "", "changed", "atol: 0.005 -> 0.5")]


def test_the_rest_of_a_task_is_told_apart_from_its_tolerance(pair):
    edit(pair[1] / "tasks" / f"{toy.NAME}.json", lambda task: task["timing"].update(iters=7))
    assert compare(pair)[1] == [("task", "", "changed", "timing.iters")]


def test_a_definition_says_which_part_changed(pair):
    path = pair[1] / "definitions" / "toy" / f"{toy.NAME}.json"
    edit(path, lambda value: (value["inputs"]["x"].update(dtype="float32"), value.update(reference="pass")))
    assert compare(pair)[1] == [("definition", "", "changed", "inputs.x; reference")]


def test_definitions_and_their_tasks_come_and_go(pair):
    toy.add_definition(pair[1], "toy_other")
    assert [(kind, change) for kind, _, change, _ in compare(pair)[1]] == [
        ("definition", "added"),
        ("tolerance", "added"),
        ("task", "added"),
    ]
    assert {change for *_, change, _ in compare(pair[::-1])[1]} == {"removed"}


def test_a_workload_takes_its_record_hashes_and_shape_along(pair):
    path = pair[1] / "workloads" / "toy" / f"{toy.NAME}.jsonl"
    gone, *kept = rows(path)
    write_rows(path, kept)
    write_rows(
        pair[1] / "captures.jsonl",
        [row for row in rows(pair[1] / "captures.jsonl") if row["workload"] != gone["workload"]["uuid"]],
    )
    summary, changes = compare(pair)
    shape = f"N={gone['workload']['axes']['N']}"
    assert ("workload", gone["workload"]["uuid"], "removed", shape) in changes
    assert ("shape", shape, "removed", "") in changes
    # x, ids, y and count of its own; the weight belongs to the other workload, too
    assert (summary["tensor"]["removed"], summary["record"]["removed"], summary["differences"]) == (4, 1, 7)
    assert [item["seeded"] for item in summary["classes"]] == [2, 1]


def test_a_record_that_changed_is_named_with_its_fields(pair):
    path = pair[1] / "captures.jsonl"
    first, *rest = rows(path)
    first["engine"]["version"] = "2"
    write_rows(path, [first, *rest])
    assert compare(pair)[1] == [("record", first["workload"], "changed", "engine.version")]


def test_a_tensor_in_another_store_is_the_same_hash(pair):
    path = pair[1] / "workloads" / "toy" / f"{toy.NAME}.jsonl"
    path.write_text(path.read_text().replace("blob/starter/", "blob/workloads/"))
    assert {(kind, change) for kind, _, change, _ in compare(pair)[1]} == {("workload", "changed")}


def test_solutions_are_compared_by_name(pair):
    for root, source in zip(pair, ("a", "b")):
        (root / "solutions" / "toy").mkdir(parents=True)
        value = {"name": "one", "definition": toy.NAME, "sources": [{"path": "main.py", "content": source}]}
        (root / "solutions" / "toy" / "one.json").write_text(json.dumps(value))
    (pair[1] / "solutions" / "toy" / "two.json").write_text(json.dumps({"name": "two", "definition": toy.NAME}))
    assert compare(pair)[1] == [("solution", "one", "changed", "sources"), ("solution", "two", "added", "")]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2)),
)
def test_changes_lead_from_the_old_release_to_the_new_one(old, new):
    """Applied to the old solutions the changes give the new ones, and the reverse comparison mirrors them."""

    def release(values: dict) -> dict:
        files = {
            f"solutions/{key}.json": json.dumps({"name": key, "definition": "d", "x": value}).encode()
            for key, value in values.items()
        }
        return diff.read_release(files, "here")

    changes = diff.compare_releases(release(old), release(new))
    result = dict(old)
    for change in changes:
        if change.change == "removed":
            del result[change.name]
        else:
            assert (change.name in old) == (change.change == "changed")
            result[change.name] = new[change.name]
    assert result == new
    mirrored = {"added": "removed", "removed": "added", "changed": "changed"}
    assert [(item.name, mirrored[item.change]) for item in changes] == [
        (item.name, item.change) for item in diff.compare_releases(release(new), release(old))
    ]


@pytest.mark.parametrize(
    "path, content, fragment",
    [
        ("captures.jsonl", "{}\n", "captures.jsonl:1"),
        ("tasks/x.json", "[]", "tasks/x.json"),
        ("definitions/toy/x.json", "{", "valid JSON"),
        ("workloads/toy/x.jsonl", '{"definition": "d"}\n', "x.jsonl:1"),
        ("captures.jsonl", "\n", "valid JSON"),
        ("solutions/x.json", '{"name": NaN}', "NaN"),
    ],
)
def test_what_cannot_be_compared_is_one_line(pair, path, content, fragment):
    (pair[1] / path).parent.mkdir(parents=True, exist_ok=True)
    (pair[1] / path).write_text(content)
    require_one_line(command(SCRIPT, *pair), fragment, str(pair[1]))


def test_bytes_that_are_no_text_are_one_line(pair):
    (pair[1] / "tasks" / "x.json").write_bytes(b"\xff\xfe")
    require_one_line(command(SCRIPT, *pair), "tasks/x.json")


def test_a_folder_that_is_no_dataset_is_refused(pair, tmp_path):
    (tmp_path / "empty").mkdir()
    require_one_line(command(SCRIPT, tmp_path / "empty", pair[0]), "definitions/", "empty")
    assert command(SCRIPT, pair[0]).code == 2
    assert command(SCRIPT, *pair, "--git", "a", "b").code == 2


@pytest.fixture
def repository(pair, tmp_path) -> Path:
    """A git repository with two revisions, `before` and `after`, and a dirty work tree."""
    root = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", str(root))
    for tag, source in zip(("before", "after"), pair):
        for item in source.iterdir():
            copy = shutil.copytree if item.is_dir() else shutil.copyfile
            copy(item, root / item.name, **({"dirs_exist_ok": True} if item.is_dir() else {}))
        if tag == "after":
            edit(root / "tasks" / f"{toy.NAME}.json", lambda task: task["tolerance"].update(rtol=0.25))
        git(root, "add", "--all")
        commit(root, tag)
        git(root, "tag", tag)
    (root / "tasks" / f"{toy.NAME}.json").write_text("dirty")
    return root


def commit(root: Path, message: str) -> None:
    author = "-c", "user.name=t", "-c", "user.email=t@t"
    git(root, *author, "commit", "--quiet", "--allow-empty", "-m", message)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_two_revisions_are_read_without_a_checkout(repository):
    before = toy.tree_bytes(repository)
    result = command(SCRIPT, "--git", "before", "after", "--repository", repository)
    assert (result.code, result.summary["tolerance"]["changed"], result.summary["differences"]) == (0, 1, 1)
    assert "rtol: 0.016 -> 0.25" in result.out and toy.tree_bytes(repository) == before


def test_a_revision_that_git_does_not_know_is_refused(repository):
    require_one_line(command(SCRIPT, "--git", "before", "nowhere", "--repository", repository), "nowhere")
    result = command(SCRIPT, "--git", "a", "b", "--repository", repository.parent / "old")
    require_one_line(result, "a revision of")


def test_a_revision_without_a_dataset_is_refused(repository):
    git(repository, "checkout", "--quiet", "--force", "--orphan", "bare")
    git(repository, "rm", "-r", "--quiet", "--cached", ".")
    (repository / "x.txt").write_text("x")
    git(repository, "add", "x.txt")
    commit(repository, "bare")
    result = command(SCRIPT, "--git", "bare", "after", "--repository", repository)
    require_one_line(result, "definitions/", "bare")
