"""What the tests of several families share."""

import pytest
from engine_source import Source, installed, wheel


@pytest.fixture(scope="session")
def engine(request) -> Source:
    """The pinned engine's source; without it the test is skipped, and says why."""
    place = installed() or wheel(request.config.cache.mkdir("engine-wheel"))
    if isinstance(place, str):
        print(place)
        pytest.skip(place)
    return Source(place)
