"""The tests of this folder need no torch: importing it fails while they run."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
