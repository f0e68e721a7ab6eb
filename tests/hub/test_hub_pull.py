"""Pulling from a fake Hub: selection, budget, resuming, damage of every kind, and an empty folder."""
# ruff: noqa: F811  (fixtures are imported by name)

import time
from types import SimpleNamespace

import pytest

from helpers.commands import command
from helpers.hub_fake import REPOSITORY, FakeHub, Fault, sha256
from helpers.hub_toys import OTHER, Waits, as_pointers, captured, checkout, hub, pointer, published, write  # noqa: F401
from helpers.toy import NAME
from inference_kernels.core.errors import EnvironmentMissing, PathError, PointerError, SchemaError
from inference_kernels.hub import pull as hub_pull
from inference_kernels.hub import revision
from inference_kernels.hub.client import HubBusy, HubError, HubReader, retry_after
from inference_kernels.hub.publish import listing
from inference_kernels.hub.pull import PullSelection, needs
from inference_kernels.hub.retry import Patience

EVERYTHING = PullSelection()


def pull(root, hub, selection=EVERYTHING, waits=None, jobs=1):
    """Do what `sync_hub.py pull` does; return (state, selected workloads, fetches)."""
    waits = waits or Waits()
    source, state = HubReader(REPOSITORY, hub.endpoint), hub_pull.Checkout(root, None)
    commit, state.remote = listing(source, "main", waits.patience, waits.told.append)
    base = revision.read_revision(root)
    moves, staging = hub_pull.plan_records(state, base)
    list(hub_pull.fetch_all(source, commit, state, staging, waits.patience, waits.told.append, jobs))
    if revision.follows(root, base):
        new = revision.arrived(REPOSITORY, commit, state.remote)
        revision.apply(root, base, new, moves, state.findings)
    chosen, fetches = hub_pull.plan_tensors(state, selection)
    hub_pull.write_pointers(state)
    list(hub_pull.fetch_all(source, commit, state, fetches, waits.patience, waits.told.append, jobs))
    return state, chosen, fetches


@pytest.fixture
def clone(checkout, hub):
    """(root whose tensors are pointers, what the Hub has for them)."""
    published(hub, checkout)
    return checkout, as_pointers(checkout)


def real(root, held) -> set[str]:
    return {path for path, content in held.items() if (root / path).read_bytes() == content}


def test_everything(clone, hub):
    root, held = clone
    state, chosen, fetches = pull(root, hub, jobs=3)
    assert real(root, held) == set(held) and not state.findings.items and len(chosen) == 4
    assert len(fetches) == len({sha256(content) for content in held.values()}) < len(held)
    assert len([line for line in hub.log if "/resolve/" in line]) == len(fetches)
    assert not list((root / "results/hub/parts").iterdir())


def test_by_definition_class_and_workload(clone, hub):
    root, held = clone
    pull(root, hub, PullSelection(definitions=(NAME,)))
    assert real(root, held) == {path for path in held if path.split("/")[2] == NAME}
    pull(root, hub, PullSelection(classes=("published",)))
    assert real(root, held) == {path for path in held if path.split("/")[2] == NAME}
    one = next(need for need in needs(root) if need.definition == OTHER)
    pull(root, hub, PullSelection(workloads=(one.uuid,)))
    assert real(root, held) == {path for path in held if path.split("/")[2] == NAME} | set(one.paths)
    pull(root, hub, PullSelection(classes=("seeded",)))
    assert real(root, held) == set(held)


@pytest.mark.parametrize(
    "selection, error, named",
    [
        (PullSelection(definitions=("toy",)), SchemaError, "toy_gather_scale"),
        (PullSelection(classes=("trained",)), SchemaError, "contest"),
        (PullSelection(workloads=("1-2",)), SchemaError, "1-2"),
    ],
)
def test_unknown_names_are_refused(clone, hub, selection, error, named):
    with pytest.raises(error, match=named):
        pull(clone[0], hub, selection)
    assert not [line for line in hub.log if "/resolve/" in line]


def test_a_budget_takes_whole_workloads_and_is_kept(clone, hub):
    root, held = clone
    unique = {sha256(content): len(content) for content in held.values()}
    smallest = min(sum(len(held[text]) for text in need.paths) for need in needs(root))
    assert pull(root, hub, PullSelection(max_bytes=smallest - 1))[1:] == ([], [])
    _, chosen, fetches = pull(root, hub, PullSelection(max_bytes=smallest))
    # The same content under the other definition costs nothing more.
    assert [need.definition for need in chosen] == [OTHER, NAME]
    assert sum(item.remote.size for item in fetches) == smallest < sum(unique.values())
    assert real(root, held) == {text for need in chosen for text in need.paths}
    uneven = tuple(need.uuid for need in needs(root))[:3]
    assert len(pull(root, hub, PullSelection(workloads=uneven, max_bytes=10**6))[1]) == 3
    # What is here is free, so the same budget goes on to the next workload when it is large enough.
    rest = sum(unique.values()) - smallest
    pull(root, hub, PullSelection(max_bytes=rest))
    assert real(root, held) == set(held)


def test_an_empty_folder_gets_records_and_pointers(checkout, hub, tmp_path):
    published(hub, checkout)
    root = tmp_path / "new"
    state, chosen, _ = pull(root, hub, PullSelection(definitions=(OTHER,)), jobs=3)
    assert not state.findings.items and {need.definition for need in chosen} == {OTHER}
    result = command("check_workload_inputs.py", "--root", root)
    assert result.code == 0, result.out
    assert (root / "scripts/empty/__init__.py").read_bytes() == b""
    there = result.summary["blobs"]
    assert (
        there["pointers"]
        and there["paths"]
        and there["pointers"] + there["paths"] == len(list((checkout / "blob/workloads").rglob("*.safetensors")))
    )


def test_records_that_differ_are_left_alone(clone, hub):
    root, _ = clone
    write(root, "tasks/note.md", "mine")
    hub.put({"tasks/note.md": b"theirs", "docs/new.md": b"new"})
    pull(root, hub)
    assert (root / "tasks/note.md").read_text() == "mine" and not (root / "docs/new.md").exists()


def requests_of(hub, path) -> list[str]:
    """List the ranges asked for of a path, from the log."""
    return [line.split(path)[1].strip() for line in hub.log if path in line]


def test_a_cut_connection_is_resumed_where_it_ended(clone, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 2)
    root, held = clone
    path = max(held, key=lambda text: len(held[text]))
    hub.faults = [Fault(f"GET .*/resolve/.*{path}", truncate=True)]
    pull(root, hub)
    assert real(root, held) == set(held)
    assert requests_of(hub, path) == ["", f"bytes={len(held[path]) // 4 * 2}-"]


def test_a_killed_pull_goes_on_with_what_had_arrived(clone, hub):
    root, held = clone
    path = max(held, key=lambda text: len(held[text]))
    write(root, f"results/hub/parts/{sha256(held[path])}", held[path][:100])
    pull(root, hub)
    assert real(root, held) == set(held) and requests_of(hub, path) == ["bytes=100-"]


@pytest.mark.parametrize(
    "left, asked", [(lambda content: b"?" * 100, ["bytes=100-", ""]), (lambda content: content + b"more", [""])]
)
def test_a_part_that_cannot_be_used_is_started_again(clone, hub, left, asked):
    root, held = clone
    path = max(held, key=lambda text: len(held[text]))
    write(root, f"results/hub/parts/{sha256(held[path])}", left(held[path]))
    state, _, _ = pull(root, hub)
    assert real(root, held) == set(held) and requests_of(hub, path) == asked and not state.findings.items


@pytest.mark.parametrize("wrong", [{"corrupt": True}, {"status": 200}], ids=["one bit", "another length"])
def test_wrong_bytes_once_are_fetched_again_twice_are_an_error(clone, hub, wrong):
    root, held = clone
    bad, good = sorted(held)[:2]
    hub.faults = [Fault(f"GET .*/resolve/.*{good}", **wrong), Fault(f"GET .*/resolve/.*{bad}", times=2, **wrong)]
    state, _, _ = pull(root, hub)
    assert [(item.level, item.where) for item in state.findings.items] == [("error", bad)]
    assert bad not in real(root, held) and good in real(root, held)
    assert (root / bad).read_text() == pointer(held[bad])


def test_a_listing_of_another_object_is_refused_before_fetching(clone, hub):
    root, held = clone
    bad = sorted(held)[0]
    hub.put({bad: b"something else"})
    state, _, _ = pull(root, hub)
    assert [(item.where, item.found) for item in state.findings.items] == [(bad, sha256(b"something else"))]
    assert not [line for line in hub.log if "/resolve/" in line and bad in line]


def test_a_tensor_that_the_hub_lacks_is_named(clone, hub):
    root, held = clone
    lost = sorted(held)[0]
    del hub.tree[lost]
    state, _, _ = pull(root, hub)
    assert [(item.where, item.found) for item in state.findings.items] == [(lost, "none")]
    assert real(root, held) == set(held) - {lost}


def test_a_pointer_to_another_object_is_an_error(clone, hub):
    root, held = clone
    path = sorted(held)[0]
    write(root, path, pointer(b"another"))
    with pytest.raises(PointerError, match="git checkout"):
        pull(root, hub)


def test_a_truncated_tensor_is_fetched_again(clone, hub):
    root, held = clone
    pull(root, hub)
    path = max(held, key=lambda text: len(held[text]))
    write(root, path, held[path][:-1])
    pull(root, hub)
    assert real(root, held) == set(held)


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_busy_hub_is_waited_for(clone, hub, status):
    root, held = clone
    hub.faults = [
        Fault(r"GET .*/resolve/", status, {"Retry-After": "5"}, times=2),
        Fault(r"GET .*/tree/.*cursor", status, {"Retry-After": "11"}),
    ]
    waits = Waits()
    pull(root, hub, EVERYTHING, waits)
    assert real(root, held) == set(held) and waits.seconds == [11, 5, 5]


def test_a_wait_beyond_reason_ends_the_pull(clone, hub):
    """The library alone would sleep that long."""
    for pattern in ("/tree/", "/resolve/"):
        hub.faults = [Fault(f"GET .*{pattern}", 429, {"Retry-After": "90000"})]
        waits = Waits()
        with pytest.raises(HubBusy, match="429"):
            pull(clone[0], hub, EVERYTHING, waits)
        assert 90_000 not in waits.seconds


def test_a_silent_hub_ends_the_listing(clone, hub, monkeypatch):
    """The library alone would wait forever."""
    monkeypatch.setattr("inference_kernels.hub.client.STALL_S", 0.3)
    hub.faults = [Fault(r"GET .*/revision/", hang=True, times=2)]
    waits = Waits(attempts=2)
    with pytest.raises(HubBusy, match="timed out"):
        pull(clone[0], hub, EVERYTHING, waits)
    assert waits.seconds == [2]


def test_a_missing_repository_is_not_waited_for(clone, hub):
    hub.faults = [Fault(r"GET .*/revision/", 404), Fault(r"GET .*/revision/", 401)]
    for remedy in ("check the repository", "log in"):
        waits = Waits()
        with pytest.raises(HubError, match=remedy):
            pull(clone[0], hub, EVERYTHING, waits)
        assert not waits.seconds


def test_the_first_failure_ends_the_waits_of_the_others(clone, hub):
    root, held = clone
    busy = max(held, key=lambda text: len(held[text]))
    hub.faults = [Fault(f"GET .*/resolve/.*{busy}", 503, {"Retry-After": "600"}), Fault("GET .*/resolve/", 404)]
    waits = Waits()
    waits.patience = Patience()  # it does wait
    start = time.monotonic()
    with pytest.raises(HubError, match="404"):
        pull(root, hub, EVERYTHING, waits, jobs=9)
    assert time.monotonic() - start < 30 and len(requests_of(hub, busy)) == 1


def test_a_trickle_ends_after_the_limit_and_keeps_what_came(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100)
    hub.put({"blob/starter/a/x": b"x" * 300})
    part = tmp_path / "part"
    answers = iter([False, True])
    with pytest.raises(HubBusy, match="in time"):
        HubReader(REPOSITORY, hub.endpoint).download("blob/starter/a/x", "main", part, 300, lambda: next(answers))
    assert part.stat().st_size == 100


def test_a_small_disk_is_noticed_first(clone, hub, monkeypatch):
    root, held = clone
    state = hub_pull.Checkout(root, None)
    _, fetches = hub_pull.plan_tensors(state, PullSelection())
    hub_pull.check_space(root, fetches)
    needed = sum(map(len, held.values()))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(EnvironmentMissing, match=f"{needed:,}"):
        hub_pull.check_space(root, fetches)


def test_a_link_out_of_the_root_is_not_followed(clone, hub, tmp_path):
    root, held = clone
    path = root / sorted(held)[0]
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathError):
        pull(root, hub)
    assert not (tmp_path / "elsewhere").exists()


def test_a_plan_without_the_hub_knows_pointer_sizes(clone):
    root, held = clone
    _, fetches = hub_pull.plan_tensors(hub_pull.Checkout(root, None), PullSelection())
    unique = {sha256(content): len(content) for content in held.values()}
    assert sum(item.remote.size for item in fetches) == sum(unique.values())


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"Retry-After": "12"}, 12),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60),
        ({}, None),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"RateLimit": '"api";r=3;t=55'}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0),
    ],
)
def test_the_wait_that_a_server_asks_for(headers, seconds):
    assert retry_after(headers, now=40.0) == seconds


def test_the_token_is_not_handed_to_a_storage_server(clone, hub, monkeypatch):
    root, held = clone
    path = sorted(held)[0]
    monkeypatch.setenv("HF_TOKEN", "secret")
    store, seen = FakeHub(), []
    store.put({path: held[path]})
    handler, resolve = store.server.RequestHandlerClass, store.server.RequestHandlerClass.do_GET
    monkeypatch.setattr(
        handler, "do_GET", lambda self: (seen.append(self.headers.get("Authorization")), resolve(self))[1]
    )
    moved = f"{store.endpoint}/datasets/{REPOSITORY}/resolve/main/{path}"
    hub.faults = [Fault(f"GET .*/resolve/.*{path}", 302, {"Location": moved})]
    try:
        pull(root, hub)
    finally:
        store.stop()
    assert real(root, held) == set(held) and seen == [None]
