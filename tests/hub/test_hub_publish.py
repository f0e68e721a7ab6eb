"""Publishing against a fake Hub: order, once only, patience, resuming, limits, the final comparison."""
# ruff: noqa: F811  (fixtures are imported by name)

import os
from functools import partial

import pytest

from helpers.hub_fake import REPOSITORY, Fault, sha256
from helpers.hub_toys import Waits, as_pointers, captured, checkout, hub, pointer, write  # noqa: F401
from inference_kernels.core.errors import PointerError, TensorFileError
from inference_kernels.core.findings import Findings
from inference_kernels.hub import publish as hub_publish
from inference_kernels.hub.client import HubBusy, HubError, HubReader, RemoteFile
from inference_kernels.hub.files import LocalFile, check_limits, compare, damaged, local_files, stage
from inference_kernels.hub.publish import Ledger
from inference_kernels.hub.retry import Patience, run_limited
from inference_kernels.hub.writer import HubWriter


def here(step, limit_s, where):
    """Run a step without a process of its own."""
    return step()


def publish(root, hub, waits=None, batch_files=100, limited=here):
    """Do what `sync_hub.py publish` does, with batches in this process; return the plan."""
    waits = waits or Waits()
    files = hub_publish.publishable(root, REPOSITORY)
    source = HubReader(REPOSITORY, hub.endpoint)
    _, remote = hub_publish.listing(source, "main", waits.patience, waits.told.append)
    plan = hub_publish.make_plan(files, remote, batch_files)
    if not plan.findings.count("error"):
        hub_publish.send(
            plan,
            HubWriter(REPOSITORY, hub.endpoint),
            Ledger(root, REPOSITORY),
            waits.patience,
            waits.told.append,
            limited,
        )
        _, remote = hub_publish.listing(source, "main", waits.patience, waits.told.append)
        compare(files, remote, plan.findings)
    return plan


def sent_paths(hub) -> list[str]:
    return [path for order in hub.orders for path in order]


def test_everything_arrives_tensors_first_records_last(checkout, hub):
    plan = publish(checkout, hub, batch_files=5)
    assert not plan.findings.items
    paths = sent_paths(hub)
    assert sorted(paths) == sorted(item.path for item in plan.files) and len(set(paths)) == len(paths)
    assert [stage(path) for path in paths] == sorted(map(stage, paths))
    assert paths[-1] == "captures.jsonl" and stage(paths[0]) == 0
    assert all(len(order) <= 5 for order in hub.orders) and len(plan.sent) == len(hub.orders)
    for item in plan.files:
        content = item.source if isinstance(item.source, bytes) else item.source.read_bytes()
        assert hub.tree[item.path][1] == content, item.path


def test_identical_objects_at_several_paths_are_sent_once(checkout, hub):
    tensors = [item for item in local_files(checkout) if item.path.startswith("blob/")]
    assert len({item.sha256 for item in tensors}) < len(tensors)
    publish(checkout, hub)
    assert sorted(hub.uploads) == sorted({item.sha256 for item in tensors})
    assert all(hub.tree[item.path][0] == "lfs" for item in tensors)


def test_a_second_publication_sends_nothing(checkout, hub):
    publish(checkout, hub)
    before = len(hub.commits), len(hub.uploads)
    plan = publish(checkout, hub)
    assert (len(hub.commits), len(hub.uploads)) == before and not plan.batches and not plan.findings.items


def test_a_changed_record_is_sent_alone(checkout, hub):
    publish(checkout, hub)
    write(checkout, "README.md", "# Toy\n\nAnother text.\n")
    plan = publish(checkout, hub)
    assert hub.orders[-1] == ["README.md"] and len(plan.sent) == 1 and not plan.findings.items


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_busy_hub_is_waited_for_as_long_as_it_asks(checkout, hub, status):
    hub.faults = [Fault(r"POST .*/commit/", status, {"Retry-After": "7"}, times=2)]
    waits = Waits()
    plan = publish(checkout, hub, waits)
    assert waits.seconds == [7, 7] and not plan.findings.items
    assert [stage(path) for path in sent_paths(hub)] == sorted(stage(path) for path in sent_paths(hub))
    assert any(str(status) in line and "waiting 7 s" in line for line in waits.told)


def test_without_retry_after_the_waits_double_and_end(checkout, hub):
    hub.faults = [Fault(r"POST .*/commit/", 503, times=99)]
    waits = Waits(attempts=4)
    with pytest.raises(HubBusy, match="503"):
        publish(checkout, hub, waits)
    assert waits.seconds == [2, 4, 8]


def test_a_wait_beyond_reason_ends_the_run(checkout, hub):
    hub.faults = [Fault(r"POST .*/commit/", 429, {"Retry-After": "90000"})]
    waits = Waits()
    with pytest.raises(HubBusy, match="429"):
        publish(checkout, hub, waits)
    assert waits.seconds == []


def test_a_rerun_sends_only_what_is_missing(checkout, hub):
    """The second commit fails for good; its objects are in the ledger, the rerun commits without sending."""
    hub.faults = [Fault(r"POST .*/commit/", times=1), Fault(r"POST .*/commit/", 400, times=1)]
    with pytest.raises(HubError, match="400"):
        publish(checkout, hub, batch_files=3)
    first = list(hub.uploads)
    assert len(first) == 6 and len(hub.orders) == 1
    plan = publish(checkout, hub, batch_files=3)
    assert not plan.findings.items and len(hub.uploads) == len(set(hub.uploads))
    assert set(hub.orders[0]).isdisjoint(path for order in hub.orders[1:] for path in order)


def test_the_ledger_alone_keeps_an_object_from_being_offered_again(checkout, hub):
    """No batch request names it: the commit refers to what the first run sent."""
    hub.faults = [Fault(r"POST .*/commit/", 400)]
    with pytest.raises(HubError, match="delete .*owner--data.jsonl"):
        publish(checkout, hub)
    hub.log.clear()
    publish(checkout, hub)
    assert not [line for line in hub.log if "objects" in line]


def test_a_commit_whose_answer_is_lost_does_no_harm(checkout, hub):
    hub.faults = [Fault(r"POST .*/commit/", 504, late=True)]
    plan = publish(checkout, hub)
    assert not plan.findings.items and len(hub.uploads) == len(set(hub.uploads))


def test_a_hung_batch_is_killed_and_repeated(checkout, hub):
    """In processes of their own: the first commit gets no answer, ever."""
    publish(checkout, hub)
    write(checkout, "README.md", "# Toy\n\nAnother text.\n")
    hub.faults = [Fault(r"POST .*/commit/", hang=True)]
    waits = Waits()
    waits.patience = Patience(attempts=6, batch_s=6, sleep=waits.seconds.append)
    plan = publish(checkout, hub, waits, limited=run_limited)
    assert not plan.findings.items and hub.orders[-1] == ["README.md"]
    assert "batch 1 of 1: no end; waiting 2 s" in waits.told[0]


def test_errors_cross_the_process_border():
    with pytest.raises(HubError, match="its process ended with 7"):
        run_limited(partial(os._exit, 7), 20, "batch 1 of 1")
    with pytest.raises(HubBusy, match="refused"):
        run_limited(partial(HubReader(REPOSITORY, "http://127.0.0.1:1").commit_of, "main"), 20, "batch 1 of 1")


def test_what_the_hub_stored_wrongly_is_found_at_the_end(checkout, hub, monkeypatch):
    name = next(item.path for item in local_files(checkout) if item.path.startswith("blob/"))
    apply = hub.apply

    def damaging(lines):
        problem = apply(lines)
        if hub.orders[-1][-1] == "captures.jsonl":
            hub.tree[name] = ("lfs", b"?")
        return problem

    monkeypatch.setattr(hub, "apply", damaging)
    plan = publish(checkout, hub)
    assert [(item.level, item.where, item.found) for item in plan.findings.items] == [("error", name, sha256(b"?"))]


def test_a_pointer_counts_as_its_object_and_is_never_sent(checkout, hub):
    publish(checkout, hub)
    held = as_pointers(checkout)
    assert not publish(checkout, hub).findings.items
    lost = sorted(held)[0]
    del hub.tree[lost]
    plan = publish(checkout, hub)
    assert [item.where for item in plan.findings.items if "pointer" in item.found] == [lost]
    assert not plan.sent


def test_a_plan_without_the_hub_leaves_pointers_out(checkout):
    held = as_pointers(checkout)
    plan = hub_publish.make_plan(hub_publish.publishable(checkout, REPOSITORY), None)
    assert {item.where for item in plan.findings.items} == set(held) and not plan.findings.count("error")
    assert not [item for batch in plan.batches for item in batch.files if item.path.startswith("blob/")]


def test_a_record_without_its_tensor_is_not_published(checkout, hub):
    tensors = sorted((checkout / "blob" / "workloads").rglob("*.safetensors"))
    tensors[0].unlink()
    plan = publish(checkout, hub)
    assert plan.findings.count("error") and not hub.orders
    assert all(tensors[0].name in item.expected for item in plan.findings.items)


def test_a_damaged_tensor_is_named(checkout):
    path = sorted((checkout / "blob" / "workloads").rglob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    errors = list(damaged(local_files(checkout), 2))
    assert [type(error) for error in errors] == [TensorFileError] and path.name in errors[0].where
    path.write_text(pointer(b"another content"))
    errors = list(damaged(local_files(checkout), 2))
    assert [type(error) for error in errors] == [PointerError] and path.name in errors[0].where


def test_limits_are_checked_with_what_the_hub_has(tmp_path):
    def entries(count, start=0):
        return {f"blob/starter/a/{number:064x}": RemoteFile("", 1, "", None) for number in range(start, count)}

    for there, level, number in ((9_999, "warning", "10,000"), (10_000, "error", "10,001"), (7_999, None, "")):
        findings = Findings()
        check_limits([LocalFile("blob/starter/a/new", b"x")], entries(there), findings)
        assert [(item.level, item.where, item.found) for item in findings.items] == (
            [(level, "blob/starter/a", number)] if level else []
        )
    stub = tmp_path / "stub"
    with open(stub, "wb") as stream:
        stream.truncate(50 * 10**9 + 1)  # a hole, not 50 GB
    findings = Findings()
    check_limits([LocalFile("captures.jsonl", stub)], {}, findings)
    assert [item.where for item in findings.items] == ["captures.jsonl"]


def test_a_batch_is_limited_by_bytes_and_a_larger_file_is_alone():
    files = [LocalFile(f"docs/{name}", b"x" * size) for name, size in zip("abcd", (4, 5, 30, 1), strict=True)]
    plan = hub_publish.make_plan(files, {}, 100, 10)
    assert [[item.path[-1] for item in batch.files] for batch in plan.batches] == [["a", "b"], ["c"], ["d"]]


def test_private_files_stay_here(checkout):
    for name in (
        "record.md",
        ".env",
        ".git/config",
        "results/hub/x.jsonl",
        "blob/generated/a/b",
        "scripts/.tmp-x",
        "scripts/__pycache__/a.pyc",
        "tests/.hypothesis/a",
        "notes/a.md",
    ):
        write(checkout, name, "secret")
    assert not [item.path for item in local_files(checkout) if item.source.read_bytes() == b"secret"]


def test_the_ledger_survives_a_kill_in_the_middle_of_a_line(tmp_path):
    ledger = Ledger(tmp_path, REPOSITORY)
    ledger.add(["a" * 64, "b" * 64])
    with open(ledger.path, "a") as stream:
        stream.write('{"sha256": "cc')
    again = Ledger(tmp_path, REPOSITORY)
    assert again.hashes == {"a" * 64, "b" * 64}
    again.add(["d" * 64])
    assert Ledger(tmp_path, REPOSITORY).hashes == {"a" * 64, "b" * 64, "d" * 64}


GOOD_LINE = b'{"sha256": "' + b"a" * 64 + b'"}\n'


@pytest.mark.parametrize(
    "left",
    [
        b"\xff\xfe\n",
        b'{"sha256": 5}\n',
        b'{"sha256": ["a"]}\n',
        b'{"sha256": {}}\n',
        b'{"sha256": "zz"}\n',
        b"[1]\n",
        b"null\n",
        b"\n",
        b"[" * 100_000 + b"\n",
        b'{"sha256": 1' + b"0" * 5000 + b"}\n",
        GOOD_LINE[:30] + b"\n" + GOOD_LINE,
        GOOD_LINE + b"\0" * 50 + b"\n",
    ],
)
def test_a_damaged_ledger_is_moved_aside_with_a_warning(checkout, hub, left):
    write(checkout, "results/hub/owner--data.jsonl", left)
    told = []
    ledger = Ledger(checkout, REPOSITORY, told.append)
    assert ledger.hashes == set() and len(told) == 1 and "damaged" in told[0]
    assert ledger.path.with_name(f"{ledger.path.name}.damaged-1").read_bytes() == left
    assert not publish(checkout, hub).findings.items
    assert Ledger(checkout, REPOSITORY).hashes == set(hub.uploads)


def test_a_ledger_that_is_no_file_is_moved_aside(checkout, tmp_path):
    place = checkout / "results/hub/owner--data.jsonl"
    for make in (place.mkdir, partial(os.mkfifo, place), partial(place.symlink_to, tmp_path / "nowhere")):
        place.parent.mkdir(parents=True, exist_ok=True)
        make()
        told = []
        assert Ledger(checkout, REPOSITORY, told.append).hashes == set() and len(told) == 1
    assert len(list(place.parent.glob("*.damaged-*"))) == 3
