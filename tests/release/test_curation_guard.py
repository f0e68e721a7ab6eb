"""Curation deletes nothing outside the root, nothing it cannot account for, and not most of a dataset unasked."""

import shutil
from pathlib import Path

import pytest

from helpers.toy import NAME, toy_dataset
from inference_kernels.core.errors import NotFound, PathError, SchemaError
from inference_kernels.core.files import write_text
from inference_kernels.release import curation, guard


def everything(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def root(tmp_path) -> Path:
    return toy_dataset(tmp_path / "full")


@pytest.mark.parametrize("place", ["blob", "blob/workloads", f"blob/starter/{NAME}", "workloads", "tasks"])
def test_a_linked_folder_is_refused_and_its_files_stay(root, tmp_path, place):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "precious.txt").write_text("not ours")
    shutil.rmtree(root / place, ignore_errors=True)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(PathError, match="symbolic link"):
        curation.make_plan(root, {})
    assert (elsewhere / "deep" / "precious.txt").read_text() == "not ours"


def test_a_link_set_after_the_plan_is_refused(root, tmp_path):
    plan = curation.make_plan(root, {})
    (root / "blob").rename(tmp_path / "moved")
    (root / "blob").symlink_to(tmp_path / "moved", target_is_directory=True)
    before = everything(tmp_path / "moved")
    with pytest.raises(PathError, match="symbolic link"):
        curation.apply(plan)
    assert everything(tmp_path / "moved") == before


def test_a_lost_workload_file_is_an_error_and_not_a_reason_to_delete(root):
    next((root / "workloads").glob("*/*.jsonl")).unlink()
    with pytest.raises(NotFound, match=NAME):
        curation.make_plan(root, {})


def test_a_folder_that_cannot_be_listed_is_an_error(root, monkeypatch):
    real = guard.os.scandir

    def refused(path):
        if str(path).endswith("workloads"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(guard.os, "scandir", refused)
    with pytest.raises(NotFound, match="Permission denied"):
        curation.make_plan(root, {})


def test_most_of_the_records_go_only_with_the_users_word(root):
    write_text(next((root / "workloads").glob("*/*.jsonl")), "")
    with pytest.raises(SchemaError, match="--yes"):
        curation.refuse_large(curation.make_plan(root, {}))
