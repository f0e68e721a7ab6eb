"""Content decides, not size: pull finds and repairs what is damaged here; hashes of unchanged files are kept."""
# ruff: noqa: F811  (fixtures are imported by name)

import json
import os
import shutil
import time

import pytest

from helpers.commands import command
from helpers.hub_fake import REPOSITORY
from helpers.hub_toys import captured, checkout, hub, published, write  # noqa: F401
from inference_kernels.hub.state import HashCache


def pull(root, *options):
    return command("sync_hub.py", "pull", "--root", root, "--repository", REPOSITORY, *options)


@pytest.fixture
def tensors(checkout, hub):
    """Publish the checkout; return its tensors, with times older than the file system's tick."""
    published(hub, checkout)
    return sorted((checkout / "blob/workloads").rglob("*.safetensors"))


def grow_old(root, monkeypatch):
    """Let the cache take the files for written long ago: ctime cannot be set."""
    monkeypatch.setattr("inference_kernels.hub.state.YOUNG_NS", -(10**12))


def one_bit(path, content):
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def one_bit_with_the_old_mtime(path, content):
    before = path.stat()
    one_bit(path, content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def zeros(path, content):
    path.write_bytes(bytes(len(content)))


def nothing(path, content):
    path.write_bytes(b"")


def another_file(path, content):
    other = path.with_name("other")
    other.write_bytes(content[::-1])
    os.replace(other, path)


@pytest.mark.parametrize("harm", [one_bit, one_bit_with_the_old_mtime, zeros, nothing, another_file])
def test_a_damaged_tensor_is_found_repaired_and_counted(checkout, tensors, monkeypatch, harm):
    grow_old(checkout, monkeypatch)
    assert pull(checkout).summary["tensors_fetched"] == 0
    held = tensors[0].read_bytes()
    time.sleep(0.02)  # beyond the file system's tick
    harm(tensors[0], held)
    plan = pull(checkout, "--dry-run")
    assert plan.summary["damaged"] == plan.summary["to_fetch"] == 1
    result = pull(checkout)
    assert result.code == 0 and result.summary["repaired"] == 1 and tensors[0].read_bytes() == held
    assert pull(checkout).summary["repaired"] == 0


def test_a_damaged_starter_tensor_is_repaired_too(captured, hub, tmp_path):
    root = tmp_path / "starter"
    shutil.copytree(captured, root)
    for path in [*root.glob("workloads/*/*.jsonl"), root / "captures.jsonl"]:
        path.write_text(path.read_text().replace("blob/workloads", "blob/starter"))
    (root / "blob/workloads").rename(root / "blob/starter")
    published(hub, root)
    one = sorted((root / "blob/starter").rglob("*.safetensors"))[0]
    held = one.read_bytes()
    zeros(one, held)
    assert pull(root).summary["repaired"] == 1 and one.read_bytes() == held


def test_what_the_hub_lacks_cannot_be_repaired(checkout, tensors, hub):
    path = tensors[0].relative_to(checkout).as_posix()
    zeros(tensors[0], tensors[0].read_bytes())
    del hub.tree[path]
    result = pull(checkout)
    assert result.code == 1 and "damaged" in result.errors()[0] and result.summary["repaired"] == 0


def test_unchanged_files_are_hashed_once_unless_asked(checkout, tensors, monkeypatch):
    grow_old(checkout, monkeypatch)
    assert pull(checkout).summary["hashed"] == len(tensors)
    assert pull(checkout).summary["hashed"] == 0
    assert pull(checkout, "--verify-all").summary["hashed"] == len(tensors)


def test_verify_all_finds_what_left_no_trace_in_the_times(checkout, tensors, monkeypatch):
    """A disk that forgets changes no time: the cache is told the old hash of the new content."""
    grow_old(checkout, monkeypatch)
    zeros(tensors[0], tensors[0].read_bytes())
    cache = HashCache(checkout)
    text = tensors[0].relative_to(checkout).as_posix()
    cache.learn([text], 1)
    cache.held[text] = (cache.held[text][0], tensors[0].stem)
    cache._write()
    assert pull(checkout).summary["repaired"] == 0
    assert pull(checkout, "--verify-all").summary["repaired"] == 1


def test_the_hash_of_a_file_just_written_is_not_kept(checkout):
    write(checkout, "x", "new")
    HashCache(checkout).learn(["x"], 1)
    assert HashCache(checkout).get("x") is None


@pytest.mark.parametrize(
    "left",
    [b"\xff", b"", b"[1", b"[]x", b'{"a": 5}', b'{"a": [1, 2, 3, 4, "x"]}', b'{"a": [1, 2, 3, null, "x"]}', b"5"],
)
def test_a_damaged_cache_is_moved_aside(checkout, tensors, left):
    write(checkout, "results/hub/hashes.json", left)
    result = pull(checkout)
    assert result.code == 0 and "damaged" in result.err and result.summary["hashed"] == len(tensors)
    assert (checkout / "results/hub/hashes.json.damaged-1").read_bytes() == left
    assert isinstance(json.loads((checkout / "results/hub/hashes.json").read_text()), dict)


def test_a_dry_run_leaves_a_damaged_cache_alone(checkout):
    write(checkout, "results/hub/hashes.json", b"\xff")
    assert pull(checkout, "--dry-run").code == 0
    assert (checkout / "results/hub/hashes.json").read_bytes() == b"\xff"
