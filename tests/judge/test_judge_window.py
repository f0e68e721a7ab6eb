"""The shared-memory buffer: tensors cross it byte for byte in pieces, and neither side can resize it."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.core.errors import EnvironmentMissing
from inference_kernels.core.tensors import DTYPES, byte_view
from inference_kernels.judge import window
from inference_kernels.judge.window import ALIGNMENT, WINDOW_BYTES, Window, create_window, window_fulls


@pytest.fixture
def sides():
    """Judge's and worker's view of one buffer."""
    descriptor = create_window()
    yield Window(descriptor, "cpu"), Window(descriptor, "cpu")
    os.close(descriptor)


@given(st.lists(st.integers(0, 5000), max_size=8))
@settings(deadline=None)
def test_pieces_cover_every_byte_once_and_each_filling_fits_in_its_half(sizes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "WINDOW_BYTES", 1024)
        fulls = list(window_fulls(dict(enumerate(sizes))))
    covered = {index: [] for index in range(len(sizes))}
    for number, pieces in enumerate(fulls):
        end = 512 * (number % 2)
        last = end + 512
        for name, start, place, count in pieces:
            assert count > 0 and place % ALIGNMENT == 0 and end <= place and place + count <= last
            end = place + count
            covered[name] += range(start, start + count)
    assert [covered[index] for index in covered] == [list(range(size)) for size in sizes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0)], ids=str)
def test_a_tensor_of_any_form_arrives_byte_for_byte(sides, dtype, shape):
    judge, worker = sides
    sent = torch.empty(shape, dtype=getattr(torch, dtype))
    byte_view(sent).copy_(torch.arange(byte_view(sent).numel()) % 2)
    found = torch.empty_like(sent)
    byte_view(found).fill_(7)
    for pieces in window_fulls({"x": byte_view(sent).numel()}):
        judge.put(pieces, {"x": sent})
        worker.take(pieces, {"x": found})
    assert torch.equal(byte_view(found), byte_view(sent))


def test_a_tensor_larger_than_the_window_crosses_in_several_fillings(sides):
    judge, worker = sides
    sent = torch.arange(2 * WINDOW_BYTES // 8 + 3)
    found, fillings = torch.zeros_like(sent), 0
    for pieces in window_fulls({"x": 8 * len(sent)}):
        judge.put(pieces, {"x": sent})
        worker.take(pieces, {"x": found})
        fillings += 1
    assert fillings == 5 and torch.equal(found, sent)


@pytest.mark.parametrize("size", [0, WINDOW_BYTES - 1, WINDOW_BYTES + 1])
def test_nobody_can_resize_it(size):
    descriptor = create_window()
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_a_system_without_such_memory_is_named(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(EnvironmentMissing, match="expected Linux"):
        create_window()
