"""What the contest importer refuses before it writes anything, and what it asks the Hub for."""

import json
import sys
import types
from pathlib import Path

import httpx2
import pytest

from helpers import contest_tree
from helpers.commands import command, require_one_line
from helpers.contest_tree import DECODE, PREFILL, WORKLOADS
from helpers.toy import tree_bytes
from inference_kernels.contest import source
from inference_kernels.core.errors import DatasetError

SCRIPT = "import_mlsys26_gdn.py"


@pytest.fixture
def folder(tmp_path) -> Path:
    contest_tree.contest_tree(tmp_path / "tree", "flat")
    contest_tree.contest_root(tmp_path / "root")
    return tmp_path


def tensor_file(folder: Path, row: int) -> Path:
    (file,) = (folder / "tree").rglob(f"*_{WORKLOADS[row][1]}.safetensors")
    return file


def edit(change, name=DECODE, line=0):
    return lambda folder: contest_tree.edit_workload(folder / "tree", name, line, change)


def tensors(change, row=0):
    return lambda folder: contest_tree.rewrite_tensor(folder / "tree", WORKLOADS[row][1], change)


def content(change, row=2):
    def apply(folder: Path) -> None:
        tensor_file(folder, row).write_bytes(change(tensor_file(folder, row).read_bytes()))

    return apply


def definition(change):
    def apply(folder: Path) -> None:
        path = folder / "tree" / "definitions" / "gdn" / f"{DECODE}.json"
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return apply


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"

REFUSED = {
    "random input": (edit(lambda w: w["inputs"].update(q={"type": "random"})), "input q", "random"),
    "input without type": (edit(lambda w: w["inputs"]["q"].pop("type")), "input q of type", "jsonl:1"),
    "scalar for a tensor": (edit(lambda w: w["inputs"].update(q={"type": "scalar", "value": 1})), "input q"),
    "required input absent": (edit(lambda w: w["inputs"].pop("A_log")), "an input A_log", WORKLOADS[0][1]),
    "wrong axis": (edit(lambda w: w["axes"].update(batch_size=9)), "batch_size", "9"),
    "axis absent": (edit(lambda w: w["axes"].pop("num_seqs"), PREFILL), "num_seqs"),
    "parent folder": (edit(lambda w: w["inputs"]["q"].update(path="./blob/workloads/../x")), "below blob/"),
    "absolute path": (edit(lambda w: w["inputs"]["q"].update(path="/etc/hostname")), "below blob/workloads/"),
    "path of another type": (edit(lambda w: w["inputs"]["q"].update(path=7)), "a path and a tensor_key"),
    "missing file": (lambda folder: tensor_file(folder, 1).unlink(), "a tensor file", "fetch the rest"),
    "pointer": (content(lambda old: POINTER), "LFS pointer to 12,345", "git lfs pull"),
    "truncated file": (content(lambda old: old[:-9]), "safetensors library"),
    "no tensor file": (content(lambda old: b"PK" + old), "safetensors library"),
    "unknown key": (edit(lambda w: w["inputs"]["q"].update(tensor_key="nope")), "a tensor 'nope'"),
    "wrong dtype": (tensors(lambda t: t.update(q=t["q"].float())), "q of dtype bfloat16", "float32"),
    "wrong shape": (tensors(lambda t: t.update(k=t["k"][..., :64].contiguous())), "head_size"),
    "repeated UUID": (edit(lambda w: w.update(uuid=WORKLOADS[0][1]), DECODE, 1), "a UUID that occurs once"),
    "not a workload": (edit(lambda w: w.pop("axes")), "uuid, axes, inputs"),
    "other contract": (definition(lambda d: d["axes"]["num_v_heads"].update(value=16)), "num_v_heads", "16"),
    "input of another dtype": (definition(lambda d: d["inputs"]["q"].update(dtype="float16")), "float16"),
    "broken definition": (definition(lambda d: d.pop("outputs")), "axes, inputs and outputs"),
    "no workloads": (lambda folder: contest_tree.workload_file(folder / "tree", PREFILL).unlink(), "mlsys26"),
}


@pytest.mark.parametrize("change, fragments", [(row[0], row[1:]) for row in REFUSED.values()], ids=list(REFUSED))
def test_a_copy_that_is_not_sound_is_refused_before_anything_is_written(folder, change, fragments):
    change(folder)
    before = tree_bytes(folder)
    result = command(
        SCRIPT, "--source", folder / "tree", "--output-root", folder / "root", "--work-directory", folder / "work"
    )
    require_one_line(result, *fragments)
    assert tree_bytes(folder) == before


def test_a_constraint_that_reads_tensors_is_checked(folder):
    contest_tree.rewrite_tensor(folder / "tree", WORKLOADS[3][1], lambda t: t["cu_seqlens"].fill_(0))
    result = command(
        SCRIPT, "--source", folder / "tree", "--output-root", folder / "root", "--work-directory", folder / "work"
    )
    require_one_line(result, "cu_seqlens[-1] == total_seq_len", WORKLOADS[3][1])
    assert not (folder / "root" / "captures.jsonl").exists()


def test_a_copy_without_definitions_and_with_links_is_read(folder):
    """The Hub's cache keeps contents elsewhere and links to them."""
    for path in (folder / "tree" / "definitions" / "gdn").iterdir():
        path.unlink()
    store = tensor_file(folder, 0).rename(folder / "content")
    (folder / "tree" / "blob" / "workloads" / "gdn" / f"{DECODE}_{WORKLOADS[0][1]}.safetensors").symlink_to(store)
    found = source.read_tree(folder / "tree", folder / "root")
    assert [workload.uuid for workload in found] == [row[1] for row in WORKLOADS]
    assert found[1].zeros == ("state",) and found[0].dropped == ("cu_seqlens",)
    assert found[2].axes == {"total_seq_len": 6, "num_seqs": 1, "len_cu_seqlens": 2}


@pytest.fixture
def hub(monkeypatch):
    """Stand in for huggingface_hub: write the miniature; `hub.calls` holds what was asked for."""
    module = types.ModuleType("huggingface_hub")
    module.calls, module.failure = [], None

    def snapshot_download(repo_id, *, repo_type, revision, local_dir, allow_patterns):
        module.calls.append((repo_id, repo_type, revision, allow_patterns))
        if module.failure:
            raise module.failure
        if not local_dir.exists():
            contest_tree.contest_tree(local_dir, "nested")

    module.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def download_command(folder: Path, *more):
    return command(SCRIPT, "--output-root", folder / "root", "--work-directory", folder / "work", *more)


def test_the_pinned_revision_is_downloaded_and_recorded(folder, hub):
    result = download_command(folder)
    assert (result.code, result.summary["new_workloads"]) == (0, 4), result
    assert hub.calls == [("flashinfer-ai/mlsys26-contest", "dataset", source.REVISION, list(source.PATTERNS))]
    lines = (folder / "root" / "captures.jsonl").read_text().splitlines()
    assert {json.loads(line)["request"]["revision"] for line in lines} == {source.REVISION}


def test_a_hub_that_does_not_deliver_is_one_line(folder, hub):
    for failure in (httpx2.ConnectError("no route to host\nmore"), OSError("connection reset")):
        hub.failure = failure
        require_one_line(download_command(folder), str(failure).splitlines()[0], "--source")


def test_a_branch_is_no_revision(folder, hub):
    require_one_line(download_command(folder, "--revision", "main"), "40 hex digits", "main")
    assert hub.calls == []


def test_without_huggingface_hub_the_remedy_is_named_and_a_dry_run_works(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    require_one_line(download_command(folder), "huggingface_hub", "--source")
    result = download_command(folder, "--dry-run")
    assert (result.code, result.summary["revision"]) == (0, source.REVISION)
    assert not (folder / "work").exists()


def test_the_patterns_cover_both_layouts():
    from fnmatch import fnmatch  # how the Hub's client matches: `*` crosses folders

    blobs = "blob/workloads/gdn"
    for file in (
        f"{blobs}/{DECODE}_u.safetensors",
        f"{blobs}/{DECODE}/{DECODE}_u.safetensors",
        f"workloads/gdn/{PREFILL}.jsonl",
        f"definitions/gdn/{PREFILL}.json",
    ):
        assert any(fnmatch(file, pattern) for pattern in source.PATTERNS)
    assert not any(fnmatch("blob/workloads/moe/x.safetensors", pattern) for pattern in source.PATTERNS)


def test_errors_are_typed(folder):
    with pytest.raises(DatasetError):
        source.read_tree(folder / "nothing", folder / "root")
