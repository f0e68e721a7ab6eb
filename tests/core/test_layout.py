"""Blob paths: one spelling, one owner, and no way out of the root."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.core.errors import PathError
from inference_kernels.core.layout import STORES, BlobPath, blob_files, blob_path, inside, workload_file

pytestmark = pytest.mark.no_torch


HASH = "0123456789abcdef" * 4
GOOD = f"blob/workloads/toy/{HASH}.safetensors"


@pytest.mark.parametrize("store", STORES)
def test_the_three_forms_survive_parsing(store):
    text = f"blob/{store}/some_name_1/{HASH}.safetensors"
    blob = BlobPath.parse(text, "here")
    assert (blob.store, blob.definition, blob.sha256, str(blob)) == (store, "some_name_1", HASH, text)


@pytest.mark.parametrize(
    "text,fault",
    [
        (f"./{GOOD}", "redundant path part"),
        (f"{GOOD}/.", "redundant path part"),
        (f"blob//{GOOD[5:]}", "redundant"),
        (f"blob/../{GOOD}", "parent folder"),
        (f"/{GOOD}", "absolute path"),
        (f"C:/{GOOD}", "absolute path"),
        (GOOD.replace("/", "\\"), "backslash"),
        ("", "redundant"),
        (f" {GOOD}", "not a canonical"),
        (f"{GOOD}\n", "not a canonical"),
        (GOOD.replace("0", "O"), "not a canonical"),
        (GOOD.replace("toy", "Toy"), "not a canonical"),
        (GOOD.replace("toy", "toy/deeper"), "not a canonical"),
        (GOOD.replace("workloads", "trunk"), "not a canonical"),
        (f"{GOOD}.tmp", "not a canonical"),
        (GOOD.replace(HASH, HASH[:-1]), "not a canonical"),
        (GOOD.replace("0", "\u0660"), "not a canonical"),
    ],
)
def test_every_other_spelling_is_refused_with_its_fault(text, fault):
    with pytest.raises(PathError, match="records.jsonl:3: ") as caught:
        BlobPath.parse(text, "records.jsonl:3")
    assert fault in caught.value.found


@given(st.text(alphabet="blo/wrksdtaefgin.0\\A\n", max_size=40))
@settings(max_examples=200, deadline=None)
def test_parsing_gives_the_same_text_back_or_refuses(text):
    try:
        assert str(BlobPath.parse(text, "here")) == text
    except PathError:
        assert not text.endswith(f"{HASH}.safetensors")


def test_a_blob_of_another_definition_is_refused(tmp_path):
    with pytest.raises(PathError, match="a blob of other; found one of toy"):
        blob_path(tmp_path, GOOD, "other", "here")


@pytest.mark.parametrize("link", ["blob", "blob/workloads", "blob/workloads/toy", GOOD])
def test_links_out_of_the_root_are_refused_at_every_level(tmp_path, link):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(outside, target_is_directory=True)
    with pytest.raises(PathError, match="a path inside"):
        blob_path(root, GOOD, "toy", "here")


def test_a_sibling_whose_name_starts_alike_is_outside(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "root-2")
    with pytest.raises(PathError):
        inside(tmp_path / "root", "link/file", "here")


def test_a_root_reached_through_a_link_is_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert blob_path(tmp_path / "link", GOOD, "toy", "here") == tmp_path / "link" / GOOD


def test_blob_files_lists_the_three_stores_only(tmp_path):
    for name in (GOOD, f"blob/starter/toy/{HASH}.safetensors", "blob/generated/.tmp-1", "blob/other/x", "x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    names = [path.relative_to(tmp_path).as_posix() for path in blob_files(tmp_path)]
    assert names == ["blob/generated/.tmp-1", f"blob/starter/toy/{HASH}.safetensors", GOOD]
    assert workload_file(tmp_path, {"op_type": "toy", "name": "n"}) == tmp_path / "workloads" / "toy" / "n.jsonl"
