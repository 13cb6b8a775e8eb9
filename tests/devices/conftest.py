"""The devices on which each of these tests runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mpicoll
from tests.devices.on import On, everywhere, made


@pytest.fixture(scope="module", params=list(everywhere()))
def on(request: pytest.FixtureRequest) -> On:
    """A device whose work is late."""
    return made(request.param, delay=5e-4)


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    made = mpicoll.Communicator()
    yield made
    if not made.closed:
        made.free()
