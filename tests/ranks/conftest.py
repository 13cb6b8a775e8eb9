"""What all tests of ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mpicoll


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what test jobs show for these tests alone, and see nothing of what others have shown on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    made = mpicoll.Communicator()
    yield made
    if not made.closed:
        made.free()
