"""Tensor files: the same bytes as the safetensors library, for every dtype, shape, stride and byte value."""

import hashlib
import json
import os

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.core.errors import PointerError, TensorFileError
from inference_kernels.core.layout import POINTER_FIRST_LINE
from inference_kernels.core.tensors import (
    DTYPES,
    byte_view,
    fill_from_file,
    load_tensor,
    raw_bytes,
    read_header,
    save_tensor,
    tensor_file_header,
)

SHAPES = [(), (1,), (0,), (7,), (3, 0, 2), (2, 3, 5), (1, 1, 1, 1)]
ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def bytes_tensor(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of any dtype whose bytes count upwards; bools are 0 and 1."""
    size = DTYPES[dtype][1] * max(1, torch.Size(shape).numel())
    data = (torch.arange(size) % (2 if dtype == "bool" else 251)).to(torch.uint8)
    values = data.view(getattr(torch, dtype))
    return values[: torch.Size(shape).numel()].reshape(shape)


def content(folder, tensor: torch.Tensor) -> bytes:
    digest, size = save_tensor(folder, tensor)
    path = folder / f"{digest}.safetensors"
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest and len(data) == size
    return data


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_our_bytes_are_those_of_the_library(tmp_path, dtype, shape):
    tensor = bytes_tensor(dtype, shape)
    ours = content(tmp_path, tensor)
    theirs = safetensors.torch.save({"tensor": tensor})
    assert ours == theirs and ours.startswith(tensor_file_header(dtype, shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_readers_give_the_tensor_back(tmp_path, dtype, shape):
    tensor = bytes_tensor(dtype, shape)
    digest, _ = save_tensor(tmp_path, tensor)
    path = tmp_path / f"{digest}.safetensors"
    header = read_header(path)
    assert (header.dtype, header.shape, header.data_bytes) == (dtype, shape, tensor.numel() * tensor.element_size())
    for loaded in (load_tensor(path), safetensors.torch.load_file(path)["tensor"]):
        assert (loaded.dtype, tuple(loaded.shape)) == (tensor.dtype, shape)
        assert bytes(raw_bytes(loaded)) == bytes(raw_bytes(tensor))


@pytest.mark.parametrize("view", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_all_256_byte_values_survive(tmp_path, view):
    """int8 stores what Trace cannot name: unsigned bytes, E8M0 exponents, packed FP4 pairs."""
    digest, _ = save_tensor(tmp_path, ALL_BYTES.view(view))
    loaded = load_tensor(tmp_path / f"{digest}.safetensors")
    for carried in (torch.uint8, torch.float8_e8m0fnu, torch.float8_e4m3fn, torch.int8):
        assert torch.equal(loaded.view(carried).view(torch.uint8), ALL_BYTES)
    assert loaded.view(torch.float8_e8m0fnu)[127].float() == 1.0


@pytest.mark.parametrize(
    "label,tensor",
    [
        ("transposed", torch.arange(6.0).reshape(2, 3).T),
        ("expanded", torch.tensor([1.0, 2.0])[:, None].expand(2, 3)),
        ("every second", torch.arange(10.0)[::2]),
        ("overlapping", torch.arange(6.0).as_strided((3, 3), (1, 1))),
        ("slice of a large buffer", torch.arange(1000.0)[500:503]),
        ("negative view", torch._neg_view(torch.tensor([1.0, -2.0]))),
        ("parameter", torch.nn.Parameter(torch.tensor([1.0, 2.0]))),
        ("0-d of a vector", torch.arange(3.0)[1]),
        ("expanded to nothing", torch.zeros(1).expand(0)),
        ("expanded to one", torch.tensor(3.0).expand(1, 1)),
    ],
)
def test_views_are_stored_by_value_and_compactly(tmp_path, label, tensor):
    expected = torch.tensor(tensor.tolist()).reshape(tensor.shape)
    assert content(tmp_path, tensor) == safetensors.torch.save({"tensor": expected})


def test_two_views_of_one_buffer_are_two_files(tmp_path):
    buffer = torch.arange(8.0)
    first, second = save_tensor(tmp_path, buffer[:4]), save_tensor(tmp_path, buffer[4:])
    assert first != second
    buffer.zero_()
    assert load_tensor(tmp_path / f"{first[0]}.safetensors").tolist() == [0.0, 1.0, 2.0, 3.0]


def test_equal_tensors_are_one_file_that_is_not_written_again(tmp_path):
    digest, size = save_tensor(tmp_path, torch.arange(4))
    path = tmp_path / f"{digest}.safetensors"
    before = path.stat()
    assert save_tensor(tmp_path, torch.arange(4).clone()) == (digest, size)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    path.write_bytes(b"half")
    save_tensor(tmp_path, torch.arange(4))
    assert load_tensor(path).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.uint16, torch.complex64, torch.float8_e8m0fnu])
def test_dtypes_that_trace_cannot_name_are_refused(tmp_path, dtype):
    with pytest.raises(TensorFileError, match="view unsigned and E8M0 bytes as int8 first"):
        save_tensor(tmp_path, torch.zeros(2).to(dtype))
    assert list(tmp_path.iterdir()) == []


def test_different_dtypes_with_the_same_bytes_are_different_files(tmp_path):
    values = ALL_BYTES.view(torch.int8)
    digests = {save_tensor(tmp_path, values.view(dtype))[0] for dtype in (torch.int8, torch.float8_e4m3fn, torch.int32)}
    digests.add(save_tensor(tmp_path, values.reshape(2, 128))[0])
    assert len(digests) == 4


@given(st.lists(st.integers(0, 4), max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_permutation_of_axes_is_stored_by_value(tmp_path_factory, shape, random):
    order = list(range(len(shape)))
    random.shuffle(order)
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape).permute(order)
    folder = tmp_path_factory.mktemp("permuted")
    digest, _ = save_tensor(folder, tensor)
    assert torch.equal(load_tensor(folder / f"{digest}.safetensors"), tensor)


def test_what_the_library_writes_elsewhere_is_read_if_it_is_one_plain_tensor(tmp_path):
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file({"tensor": torch.arange(3)}, path)
    assert load_tensor(path).tolist() == [0, 1, 2]
    safetensors.torch.save_file({"tensor": torch.arange(3)}, path, metadata={"format": "pt"})
    with pytest.raises(TensorFileError, match="no metadata; found 2 entries"):
        load_tensor(path)
    safetensors.torch.save_file({"tensor": torch.arange(3), "other": torch.arange(3)}, path)
    with pytest.raises(TensorFileError, match="exactly one tensor"):
        load_tensor(path)


def test_loading_names_pointers_and_damage(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(POINTER_FIRST_LINE + b"\noid sha256:" + b"a" * 64 + b"\nsize 5\n")
    with pytest.raises(PointerError, match="git lfs pull"):
        load_tensor(path)
    path.write_bytes(b"")
    with pytest.raises(TensorFileError, match="an empty file"):
        load_tensor(path)


def test_a_header_that_only_the_library_refuses_is_no_traceback(tmp_path, monkeypatch):
    """The safetensors library may one day be stricter than our header check."""
    from inference_kernels.core import tensors

    path = tmp_path / "x.safetensors"
    raw = json.dumps({"tensor": {"dtype": "NEW", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    monkeypatch.setitem(tensors.TRACE_NAMES, "NEW", ("new", 1))
    with pytest.raises(TensorFileError, match="a file that the safetensors library reads"):
        load_tensor(path)


@pytest.mark.parametrize("readers", [1, 3, 900])
@pytest.mark.parametrize("piece", [1, 7, 800, 801])
@pytest.mark.parametrize("count", [100, 0])
def test_filling_in_pieces_of_any_size(tmp_path, piece, count, readers):
    """Tensors reach a GPU through pinned host memory."""
    digest, _ = save_tensor(tmp_path, torch.arange(count))
    path, found = tmp_path / f"{digest}.safetensors", torch.empty(count, dtype=torch.int64)
    fill_from_file(byte_view(found), path, read_header(path), torch.empty((readers, piece), dtype=torch.uint8))
    assert torch.equal(found, torch.arange(count))


def test_a_file_cut_while_it_is_read_is_named(tmp_path):
    digest, _ = save_tensor(tmp_path, torch.arange(100))
    path, data = tmp_path / f"{digest}.safetensors", torch.empty(800, dtype=torch.uint8)
    header = read_header(path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(TensorFileError, match="cut while it was read"):
        fill_from_file(data, path, header, torch.empty((2, 64), dtype=torch.uint8))
