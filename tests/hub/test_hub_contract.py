"""The installed huggingface_hub has what hub/writer.py uses of it. Skipped without the extra `hub`."""

import inspect

import pytest

hub = pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")

USED = {
    "create_commit": {"repo_id", "operations", "commit_message", "repo_type", "revision"},
    "preupload_lfs_files": {"repo_id", "additions", "repo_type", "revision", "free_memory"},
}


@pytest.mark.parametrize("name", USED)
def test_signatures(name):
    assert USED[name] <= set(inspect.signature(getattr(hub.HfApi, name)).parameters)


def test_operations(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    addition = hub.CommitOperationAdd("a/b", tmp_path / "x")
    assert addition.upload_info.size == 3
    # What hub_writer sets for an object that was sent before; the library's own names for it.
    assert addition._upload_mode is None and addition._is_uploaded is False
    copy = hub.CommitOperationCopy("a/b", "c/d")
    assert (copy.src_path_in_repo, copy.path_in_repo) == ("a/b", "c/d")


def test_an_error_carries_the_answer():
    assert "response" in inspect.signature(hub.errors.HfHubHTTPError.__init__).parameters
    assert callable(hub.get_token) and callable(hub.utils.disable_progress_bars)


def test_the_card_is_what_the_library_reads():
    from inference_kernels.hub.card import FENCE, front_matter, render

    fields = front_matter(["seeded", "published"], "owner/data")
    card = hub.DatasetCard(f"{FENCE}{render(fields)}{FENCE}\n# Toy\n")
    assert card.data.to_dict() == fields | {"viewer": False} and card.text.strip() == "# Toy"


def test_a_changed_file_is_refused(tmp_path):
    from inference_kernels.hub.client import HubError, Outgoing
    from inference_kernels.hub.writer import _addition

    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(HubError, match="leave the tree alone"):
        _addition(Outgoing("a", tmp_path / "x", 4, "0" * 64))
