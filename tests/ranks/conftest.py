"""What all tests of ranks share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from mpicoll.machine.linux import SHARES


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what test jobs show for these tests alone, and see nothing of what others have shown on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


NEED_SHARED_MEMORY = (
    *("test_node.py", "test_reproducible.py", "test_rules.py", "test_scheduled.py", "test_shared*.py"),
    *("test_unusable.py", "test_where_arrays_lie.py", "test_examples_of_calls.py", "test_cuda.py", "devices/*"),
    *("torch/test_device*.py", "torch/test_shared.py", "torch/programs/*device*.py"),
    "torch/programs/test_shared_memory.py",
)
"""Files that ask for the kernel's collectives, for memory that ranks share, or for the simulated device, which lies in
such memory."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in () if SHARES else items:
        name = os.path.relpath(item.path, Path(__file__).parent)
        if any(fnmatch(name, pattern) for pattern in NEED_SHARED_MEMORY):
            item.add_marker(pytest.mark.skip(reason="ranks share no memory here"))
