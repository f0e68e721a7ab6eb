"""Check the cut-down build of NATTEN: what it refuses before a compiler runs, and its cuts on the pinned sources."""

import re
import subprocess
import sys

import pytest

import natten_build
from inference_kernels.core.errors import EnvironmentMissing
from natten_build import COMPILED, BuildError, bindings, download, edits, trim, unpack


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Cut the sources of the pinned release; they need the network once."""
    pytest.importorskip("torch")  # the release's own metadata imports it
    folder = tmp_path_factory.mktemp("natten")
    try:
        sdist = download(folder)
    except BuildError as error:
        pytest.skip(error.line())
    tree = unpack(sdist, folder)
    trim(tree)
    return tree


def test_the_cuts_leave_one_rank_dtype_and_head_size(tree):
    kernels = [
        re.findall(r"hopper_fna\w+", path.read_text())[0]
        for path in sorted((tree / "csrc/autogen/src/cuda/hopper_fna").glob("*.cu"))
    ]
    assert kernels == [f"hopper_fna3d_bfloat16_64x128x64_Q4x4x4_{keys}_causal0x0x0" for keys in ("KV4x4x8", "KV2x8x8")]
    for path, function in zip(
        natten_build.SOURCES[1:], ("hopper_na{}d_forward(", "token_permute_{}d(", "token_unpermute_{}d(")
    ):
        source = (tree / path).read_text()
        assert [f"void {function.format(rank)}" in source for rank in (1, 2, 3)] == [False, False, True]


def test_every_name_that_natten_imports_exists(tree):
    """Import all functions as the wrappers do: a missing one would hide the whole extension."""
    text = (tree / natten_build.BINDINGS).read_text()
    wrappers = (tree / "src/natten/_libnatten/__init__.py").read_text()
    names = {name.strip(" ,") for name in wrappers.split("torch_wrappers import (")[1].split(")")[0].splitlines()}
    assert all(f'"{name}"' in text for name in names - {""})
    assert [text.count(f"&natten::{name}") for name in COMPILED] == [1, 1, 1]


def test_bindings_raise_for_what_was_left_out():
    text = bindings('m.def(\n "na1d_forward", &x); m.def("hopper_na3d_forward", &y);')
    assert 'leave_out(m, "na1d_forward");' in text and 'm.def("hopper_na3d_forward", &natten::' in text


def test_other_sources_are_refused_by_hash(tmp_path):
    (tmp_path / "natten.tar.gz").write_bytes(b"another release")
    with pytest.raises(BuildError, match="expected SHA-256"):
        unpack(tmp_path / "natten.tar.gz", tmp_path)


def test_sources_that_lack_what_is_cut_are_refused(tmp_path):
    for edit in edits():
        path = tmp_path / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("NA_DIMS = [1, 2]\n")
    with pytest.raises(BuildError, match="expected one place with"):
        trim(tmp_path)


def test_an_output_that_exists_is_left_alone(tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(BuildError, match="new folder"):
        natten_build.build(tmp_path, None, print)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_without_torch_for_cuda_the_command_says_so(tmp_path, repository):
    version = pytest.importorskip("torch.version")
    if version.cuda is not None:
        pytest.skip("this torch is for CUDA")
    with pytest.raises(EnvironmentMissing, match="torch for CPU"):
        natten_build.require_compiler()
    done = subprocess.run(
        [sys.executable, repository / "benchmarks" / "natten_build.py", "--output", tmp_path / "new"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "expected torch for CUDA and nvcc" in done.stderr
    assert not list(tmp_path.iterdir())
