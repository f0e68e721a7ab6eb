"""Shared fixtures: the library on the path, the repository's own definitions and references."""

import signal
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))
sys.path.insert(0, str(REPOSITORY / "tests"))
# A shell starts background jobs with SIGINT ignored, and children inherit that; some tests send SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def definition():
    """definition(name) -> a definition of this repository, live or retired."""
    from inference_kernels.core.definitions import definition_files, read_definition

    files = definition_files(REPOSITORY) + definition_files(REPOSITORY, "retired/definitions")
    by_name = {path.stem: path for path in files}
    return lambda name: read_definition(by_name[name])


@pytest.fixture(scope="session")
def reference(definition):
    """reference(name) -> the packed reference as a callable."""
    from inference_kernels.core.definitions import compile_reference

    return lambda name: compile_reference(definition(name))


@pytest.fixture(autouse=True)
def no_torch(request, monkeypatch):
    """Make the import of torch fail during tests marked `no_torch`."""
    if request.node.get_closest_marker("no_torch"):
        monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(scope="session")
def engine(request):
    """The pinned engine's source; without it the test is skipped with a reason."""
    from helpers.engine_source import Source, installed, wheel

    place = installed() or wheel(request.config.cache.mkdir("engine-wheel"))
    if isinstance(place, str):
        print(place)
        pytest.skip(place)
    return Source(place)
