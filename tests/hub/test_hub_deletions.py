"""Deletions on the Hub: only with --delete, shown before, records before tensors, never most of a dataset."""
# ruff: noqa: F811  (fixtures are imported by name)

import pytest

from helpers.commands import command, require_one_line
from helpers.hub_fake import REPOSITORY, Fault
from helpers.hub_toys import OTHER, captured, checkout, hub, published, write  # noqa: F401

STRAYS = {"definitions/old/gone.json", "tasks/gone.json", "workloads/old/gone.jsonl"}


def sync(action, root, *options):
    return command("sync_hub.py", action, "--root", root, "--repository", REPOSITORY, "--attempts", 1, *options)


@pytest.fixture
def there(checkout, hub):
    """A Hub with a definition and a tensor that the checkout has removed."""
    sync("publish", checkout)
    tensor = next(path for path in hub.tree if path.startswith("blob/workloads/"))
    gone = tensor.replace(tensor.split("/")[2], "gone")
    hub.put({path: path.encode() for path in STRAYS} | {gone: hub.tree[tensor][1], ".gitignore": b"x"})
    return hub, STRAYS | {gone}


def test_without_the_option_nothing_is_deleted(checkout, there):
    hub, strays = there
    result = sync("publish", checkout)
    assert result.code == 0 and not hub.deleted and strays <= set(hub.tree) and result.summary["to_delete"] == 0


def test_verify_lists_strays_with_the_remedy(checkout, there):
    result = sync("verify", checkout)
    named = {line.split()[1].rstrip(":") for line in result.findings if "publish --delete" in line}
    assert result.code == 0 and named == there[1] and result.summary["strays"] == len(named)


def test_a_dry_run_lists_and_deletes_nothing(checkout, there):
    hub, strays = there
    result = sync("publish", checkout, "--delete", "--dry-run")
    assert result.code == 0 and not hub.deleted and result.summary["to_delete"] == len(strays)
    assert all(any(path in line for line in result.findings) for path in strays)


def test_what_the_dataset_no_longer_has_is_deleted_records_first(checkout, there, tmp_path):
    hub, strays = there
    write(checkout, "README.md", "# Toy\n\nWithout one definition.\n")
    result = sync("publish", checkout, "--delete", "--batch-files", 2)
    assert result.code == 0 and result.summary["warnings"] == 0, result.out
    assert set(hub.deleted) == strays and hub.deleted[0].startswith("workloads/") and ".gitignore" in hub.tree
    assert hub.deleted[-1].startswith("blob/")
    assert sync("verify", checkout).summary["strays"] == 0
    assert sync("pull", tmp_path / "new").code == 0 and not (tmp_path / "new/tasks/gone.json").exists()


def test_a_part_of_a_checkout_does_not_empty_the_hub(checkout, there):
    hub, strays = there
    many = {f"docs/{number}.md": b"x" for number in range(len(hub.tree))}
    hub.put(many)
    require_one_line(sync("publish", checkout, "--delete"), "--yes", "deletions")
    assert not hub.deleted
    assert sync("publish", checkout, "--delete", "--yes").code == 0
    assert set(hub.deleted) == strays | set(many)


def test_an_error_deletes_nothing(checkout, there):
    hub, _ = there
    next((checkout / "tasks").glob("*.json")).write_text("changed")
    hub.faults = [Fault("POST .*/commit/", 400)]
    assert sync("publish", checkout, "--delete").code == 2 and not hub.deleted


def test_a_deletion_that_was_cut_goes_on(checkout, there):
    hub, strays = there
    hub.faults = [Fault("POST .*/commit/", times=1), Fault("POST .*/commit/", 400)]
    assert sync("publish", checkout, "--delete", "--batch-files", 1).code == 2 and len(hub.deleted) == 1
    assert sync("publish", checkout, "--delete").code == 0 and set(hub.deleted) == strays
