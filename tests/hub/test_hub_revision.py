"""The small files of one revision, whole: pull again after a publication, cuts at every moment, local edits."""
# ruff: noqa: F811  (fixtures are imported by name)

import os

import pytest

from helpers.commands import command, require_one_line
from helpers.hub_fake import REPOSITORY, Fault
from helpers.hub_toys import captured, checkout, hub, published, write  # noqa: F401
from inference_kernels.hub.files import is_published


def pull(root, *options):
    return command("sync_hub.py", "pull", "--root", root, "--repository", REPOSITORY, "--attempts", 1, *options)


def small(tree) -> dict[str, bytes]:
    return {
        path: content
        for path, (_, content) in tree.items()
        if is_published(path) and not path.startswith("blob/workloads/")
    }


def here(root) -> dict[str, bytes]:
    paths = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return {
        path: (root / path).read_bytes() for path in paths if not path.startswith(("results/hub/", "blob/workloads/"))
    }


@pytest.fixture
def source(checkout, hub):
    published(hub, checkout)
    hub.put({"docs/old.md": b"old", "docs/folder/gone.md": b"gone", "docs/same-1.md": b"=", "docs/same-2.md": b"="})
    return hub


def republish(hub):
    """Change, add and remove small files, as a publication with other content does."""
    task = next(path for path in hub.tree if path.startswith("tasks/"))
    hub.put(
        {task: hub.tree[task][1] + b"\n", "docs/new.md": b"new", "docs/old.md": b"newer", "docs/same-2.md": b"!"}
        | {"captures.jsonl": hub.tree["captures.jsonl"][1].replace(b'": ', b'":  ', 1)}
    )
    hub.tree.pop("docs/folder/gone.md", None)


def test_pull_again_brings_the_new_revision(source, tmp_path):
    root = tmp_path / "new"
    assert pull(root).code == 0 and here(root) == small(source.tree)
    republish(source)
    result = pull(root)
    assert result.code == 0 and here(root) == small(source.tree) and not (root / "docs/folder").exists()
    assert result.summary["records_commit"] == result.summary["commit"] == source.commit_id(len(source.commits) - 1)
    assert not (root / "results/hub/staged").exists()
    result = pull(root)
    assert result.summary["records_fetched"] == result.summary["records_changed"] == 0


def test_an_older_revision_comes_back_whole(source, tmp_path):
    root, before = tmp_path / "new", small(source.tree)
    old = source.commit_id(len(source.commits) - 1)
    source.commits.append(dict(source.tree))
    republish(source)
    pull(root)
    assert pull(root, "--revision", old).code == 0 and here(root) == before


@pytest.mark.parametrize("again", [False, True])
def test_a_pull_cut_before_the_last_file_places_nothing(source, tmp_path, again):
    root = tmp_path / "new"
    if again:
        pull(root)
        republish(source)
    before = here(root) if again else {}
    source.faults = [Fault("GET .*/resolve/.*captures.jsonl", 503)]
    require_one_line(pull(root, "--jobs", 1), "503")
    assert here(root) == before
    republish(source)
    source.log.clear()
    assert pull(root).code == 0 and here(root) == small(source.tree)
    assert not [line for line in source.log if "docs/same-1" in line]  # staged before, and still the same


@pytest.mark.parametrize("moved", [0, 1, 5])
def test_a_kill_while_files_are_moved_leaves_no_mix(source, tmp_path, monkeypatch, moved):
    root, count = tmp_path / "new", iter(range(100))
    pull(root)
    republish(source)

    def killed(*_):
        if next(count) == moved:
            raise KeyboardInterrupt
        return place(*_)

    from inference_kernels.hub import revision

    place = revision._place
    monkeypatch.setattr(revision, "_place", killed)
    assert pull(root).code in (0, 130)
    monkeypatch.setattr(revision, "_place", place)
    republish(source)
    result = pull(root)
    assert result.code == 0 and here(root) == small(source.tree) and not result.summary["warnings"]


def test_wrong_bytes_of_a_record_place_nothing(source, tmp_path):
    source.faults = [Fault("GET .*/resolve/.*docs/old.md", corrupt=True, times=9)]
    result = command("sync_hub.py", "pull", "--root", tmp_path / "new", "--repository", REPOSITORY, "--attempts", 2)
    assert result.code == 2 and "docs/old.md" in result.err.splitlines()[-1]
    assert here(tmp_path / "new") == {}


def test_an_edit_is_kept_or_set_aside_and_named(source, tmp_path):
    root = tmp_path / "new"
    pull(root)
    write(root, "docs/same-1.md", "mine 1")  # the Hub's does not change
    write(root, "docs/old.md", "mine 2")  # the Hub's changes
    write(root, "docs/folder/gone.md", "mine 3")  # the Hub's is deleted
    write(root, "docs/mine.md", "mine 4")  # the Hub has none
    republish(source)
    result = pull(root)
    kept = {"docs/same-1.md": b"mine 1", "docs/folder/gone.md": b"mine 3", "docs/mine.md": b"mine 4"}
    assert result.code == 0 and here(root) == small(source.tree) | kept
    assert (root / "results/hub/edited/docs/old.md").read_bytes() == b"mine 2"
    named = [line for line in result.findings if line.startswith("warning")]
    assert len(named) == 3 and any("results/hub/edited/docs/old.md" in line for line in named)
    write(root, "docs/old.md", "mine 5")
    republish(source)
    source.put({"docs/old.md": b"newest"})
    pull(root)
    assert (root / "results/hub/edited/docs/old.md.2").read_bytes() == b"mine 5"
    assert (root / "results/hub/edited/docs/old.md").read_bytes() == b"mine 2"


def test_a_file_that_was_here_before_the_first_pull_is_not_lost(source, tmp_path):
    root = tmp_path / "new"
    write(root, "README.md", "mine")
    result = pull(root)
    assert result.code == 0 and here(root) == small(source.tree) and result.summary["warnings"] == 1
    assert (root / "results/hub/edited/README.md").read_bytes() == b"mine"


def test_a_clone_is_left_to_git_and_its_difference_is_said(source, checkout):
    before = here(checkout)
    republish(source)
    result = pull(checkout)
    assert result.code == 0 and here(checkout) == before and result.summary["records_commit"] is None
    assert result.summary["warnings"] == 1 and "git" in result.findings[0]


@pytest.mark.parametrize(
    "left",
    [
        b"\xff",
        b"[]",
        b"{}",
        b'{"repository": 1, "commit": null, "files": {}}',
        b'{"repository":"","commit":"","files":5}',
    ],
)
def test_a_damaged_record_of_the_revision_is_moved_aside(source, tmp_path, left):
    root = tmp_path / "new"
    pull(root)
    write(root, "results/hub/revision.json", left)
    result = pull(root)
    assert result.code == 0 and "damaged" in result.err
    os.unlink(root / "captures.jsonl")
    assert pull(root).code == 0 and here(root) == small(source.tree)
