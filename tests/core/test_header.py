"""Reading headers and pointers from any bytes gives a clear answer or a typed error."""

import json
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.core.errors import DatasetError, PointerError, TensorFileError
from inference_kernels.core.hashing import BLOCK, hash_files, sha256_file
from inference_kernels.core.layout import POINTER_FIRST_LINE, Pointer, pull_command, read_pointer
from inference_kernels.core.tensors import DTYPES, TensorHeader, read_header, tensor_file_header

pytestmark = pytest.mark.no_torch


OID = "ab" * 32


@pytest.fixture
def file(tmp_path):
    def write(content: bytes):
        path = tmp_path / "file.safetensors"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3, 4)])
def test_our_own_headers_are_read_back(file, dtype, shape):
    head = tensor_file_header(dtype, shape)
    size = DTYPES[dtype][1]
    for dimension in shape:
        size *= dimension
    assert read_header(file(head + bytes(size))) == TensorHeader(dtype, shape, size, len(head))
    assert len(head) % 8 == 0


def test_a_header_is_read_without_its_data(file):
    """Reading a sparse file of 2 GiB and 8 bytes is instant, because only its header is read."""
    elements = 2**31 + 8
    path = file(tensor_file_header("int8", (elements,)))
    os.truncate(path, path.stat().st_size + elements)
    assert read_header(path).data_bytes == elements


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_give_a_typed_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "x"
    path.write_bytes(content)
    with pytest.raises((TensorFileError, PointerError)):
        read_header(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(["F32", "BOOL", "x"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "more"]), VALUES, max_size=4)


@given(
    st.one_of(VALUES, st.dictionaries(st.sampled_from(["tensor", "__metadata__", "x"]), ENTRIES | VALUES, max_size=2)),
    st.integers(0, 9),
)
@settings(max_examples=300, deadline=None)
def test_random_headers_are_read_or_refused(tmp_path_factory, header, size):
    raw = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("header") / "x"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(size))
    try:
        found = read_header(path)
    except DatasetError:
        return
    assert header == {
        "tensor": {"dtype": DTYPES[found.dtype][0], "shape": list(found.shape), "data_offsets": [0, size]}
    }


@pytest.mark.parametrize(
    "shape,found",
    [
        ("9" * 4000, "an integer of 4,000 digits"),
        (",".join(["9" * 4200] * 200), "an integer of 4,200 digits"),
        ("1," * 2_500_000 + "1", "5,000,"),
        (",".join(["9" * 99] * 60), "999"),
        (",".join(["1"] * 65), "1, 1"),
    ],
)
def test_huge_sizes_are_refused_before_they_are_multiplied(file, shape, found):
    """One million digits took more than 90 s to multiply, and a size of 4,300 digits cannot be printed."""
    raw = b'{"tensor":{"dtype":"I8","shape":[' + shape.encode() + b'],"data_offsets":[0,1]}}'
    with pytest.raises(TensorFileError) as caught:
        read_header(file(struct.pack("<Q", len(raw)) + raw + b"\0"))
    assert found in caught.value.found and len(caught.value.line()) < 1000


def test_what_is_no_regular_file_is_no_tensor(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(TensorFileError, match="expected a regular file; found a "):
            read_header(path)


def pointer_text(oid: str = OID, size: str = "123") -> bytes:
    return POINTER_FIRST_LINE + f"\noid sha256:{oid}\nsize {size}\n".encode()


def test_pointers_are_recognised_and_named_instead_of_a_header_too_large(file):
    path = file(pointer_text())
    assert read_pointer(path) == Pointer(OID, 123)
    with pytest.raises(PointerError, match="a Git LFS pointer to 123 bytes; fetch it: git lfs pull"):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"version https://example.org", b"\0" * 500, pointer_text() + b" " * 1024])
def test_other_files_are_no_pointers(file, content):
    assert read_pointer(file(content)) is None


@pytest.mark.parametrize(
    "content",
    [
        POINTER_FIRST_LINE,
        POINTER_FIRST_LINE + b"\n",
        pointer_text(oid="12"),
        pointer_text(size="-1"),
        pointer_text(size="many"),
        pointer_text(oid=OID.upper()),
    ],
)
def test_broken_pointers_are_refused(file, content):
    with pytest.raises(PointerError, match="a broken pointer"):
        read_pointer(file(content))


def test_the_pull_command_names_the_definitions():
    assert pull_command({"b", "a"}) == "git lfs pull --include 'blob/workloads/a/**,blob/workloads/b/**'"


def test_hashes_of_files_of_every_size_in_order(tmp_path):
    import hashlib

    contents = [bytes([index]) * size for index, size in enumerate((0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK))]
    paths = [tmp_path / str(index) for index in range(len(contents))]
    for path, content in zip(paths, contents):
        path.write_bytes(content)
        assert sha256_file(path) == hashlib.sha256(content).hexdigest()
    for jobs in (1, 3):
        assert list(hash_files(paths, jobs)) == [(path, sha256_file(path)) for path in paths]


def test_an_unreadable_file_is_reported_and_the_rest_is_hashed(tmp_path):
    (tmp_path / "b").write_text("b")
    (missing, error), (_, digest) = hash_files([tmp_path / "a", tmp_path / "b"], 2)
    assert missing == tmp_path / "a" and isinstance(error, FileNotFoundError)
    assert digest == sha256_file(tmp_path / "b")


def test_hashing_is_lazy(tmp_path):
    """Paths are consumed only as needed: memory stays flat in the number of files."""
    taken = []

    def paths():
        for index in range(100):
            taken.append(index)
            yield tmp_path / str(index)

    results = hash_files(paths(), 2)
    next(results)
    assert len(taken) <= 8
    results.close()
