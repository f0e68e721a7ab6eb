"""The installed huggingface_hub has what hub/client.py and hub/writer.py use of it beyond its documentation."""

import inspect

import huggingface_hub as hub
import pytest
from huggingface_hub.file_download import http_get

from inference_kernels.hub.client import HubError, Outgoing
from inference_kernels.hub.writer import _addition

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
    # What hub/writer.py sets for an object that was sent before; the library's own names for it.
    assert addition._upload_mode is None and addition._is_uploaded is False
    copy = hub.CommitOperationCopy("a/b", "c/d")
    assert (copy.src_path_in_repo, copy.path_in_repo) == ("a/b", "c/d")


def test_an_error_carries_the_answer():
    assert "response" in inspect.signature(hub.errors.HfHubHTTPError.__init__).parameters
    assert {"request", "response"} == set(hub.get_session().event_hooks)


def test_downloads_can_be_resumed():
    assert {"resume_size", "headers", "_nb_retries"} <= set(inspect.signature(http_get).parameters)


def test_a_changed_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(HubError, match="leave the tree alone"):
        _addition(Outgoing("a", tmp_path / "x", 4, "0" * 64))
