"""The command: plans without network or packages, and all three actions against a fake Hub."""
# ruff: noqa: F811  (fixtures are imported by name)

import subprocess
import sys

import pytest

from helpers.commands import command, process, require_one_line
from helpers.hub_fake import REPOSITORY, Fault
from helpers.hub_toys import OTHER, as_pointers, captured, checkout, hub, published  # noqa: F401
from inference_kernels.hub.files import is_published


def sync(action, root, *options):
    return command("sync_hub.py", action, "--root", root, "--repository", REPOSITORY, *options)


@pytest.fixture
def without_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)


@pytest.mark.parametrize("action", ["pull", "publish", "verify"])
def test_help_of_each_action_needs_the_standard_library_only(action):
    result = process("sync_hub.py", action, "--help", before=("-S", "-E"))
    assert (result.code, result.err) == (0, "") and "--dry-run" in result.out


def test_dry_runs_need_neither_network_nor_package(checkout, tmp_path, monkeypatch, without_package):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
    card = tmp_path / "card.md"
    result = sync("publish", checkout, "--dry-run", "--card", card)
    assert result.code == 0 and result.summary["batches"] == len(result.findings)
    assert result.summary["copies"] and not result.summary["compared_with_hub"]
    assert card.read_text().startswith("---\npretty_name")
    assert sync("verify", checkout, "--dry-run").summary["files"] == result.summary["files"]
    as_pointers(checkout)
    result = sync("pull", checkout, "--dry-run", "--definition", OTHER)
    assert result.code == 0 and result.summary["workloads"] == 2 and result.summary["to_fetch_bytes"] > 0
    assert not (checkout / "results").exists()


def test_publishing_without_the_package_says_what_to_install(checkout, without_package):
    require_one_line(sync("publish", checkout), "huggingface_hub", "[hub]")


def test_publish_verify_pull(checkout, hub, tmp_path):
    result = sync("publish", checkout, "--batch-files", 5)
    assert result.code == 0 and result.summary["errors"] == 0, result.out
    assert len(result.summary["commits"]) == result.summary["batches"] == len(hub.orders)
    result = sync("verify", checkout)
    assert result.code == 0 and result.summary["warnings"] == 0, result.out
    root = tmp_path / "new"
    result = sync("pull", root, "--max-bytes", 1)
    assert result.code == 0 and result.summary["tensors_fetched"] == 0
    assert result.summary["pointers_written"] == len(list((root / "blob").rglob("*.safetensors"))) > 0
    assert sync("verify", root).code == 0
    result = sync("pull", root)
    assert result.code == 0 and result.summary["tensors_fetched"] == result.summary["to_fetch"] > 0
    assert command("check_workload_inputs.py", "--root", root).code == 0
    assert sync("pull", root).summary["tensors_fetched"] == 0


def test_verify_names_every_kind_of_difference(checkout, hub):
    published(hub, checkout)
    tensors = sorted((checkout / "blob" / "workloads").rglob("*.safetensors"))
    content = tensors[0].read_bytes()
    tensors[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    task = next((checkout / "tasks").glob("*.json"))
    task.write_text(task.read_text().replace('"', "'", 1))  # of the same size
    other = tensors[1].relative_to(checkout).as_posix()
    hub.put(
        {"tasks/more.json": b"{}", "blob/starter/x": b"1", ".gitignore": b"", other: bytes(tensors[1].stat().st_size)}
    )
    del hub.tree["captures.jsonl"]
    result = sync("verify", checkout)
    assert result.code == 1
    assert {line.split()[1].rstrip(":") for line in result.errors()} == {
        tensors[0].relative_to(checkout).as_posix(),
        other,
        f"tasks/{task.name}",
        "captures.jsonl",
        "README.md",
    }
    assert {line.split()[1].rstrip(":") for line in result.findings if line.startswith("warning")} == {
        "tasks/more.json",
        "blob/starter/x",
    }


def test_a_busy_hub_ends_in_one_line(checkout, hub):
    hub.faults = [Fault("GET .*/revision/", 503, times=9)]
    require_one_line(sync("verify", checkout, "--attempts", 1), "503", "again")


def test_wrong_arguments_are_one_line(checkout, hub):
    require_one_line(command("sync_hub.py", "verify", "--root", checkout, "--repository", "nowhere"), "owner/name")
    require_one_line(sync("pull", checkout / "docs", "--dry-run"), "definitions/")


def test_every_tracked_path_is_published_or_known_to_stay(repository):
    """A new top-level folder needs a decision: list it in hub_files.PUBLISHED or here."""
    done = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    left = {path.split("/")[0] for path in done.stdout.splitlines() if not is_published(path)}
    assert {name for name in left if not name.startswith(".")} == set()
