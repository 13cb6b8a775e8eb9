"""What all tests of ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpicoll.machine.linux import SHARES


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what test jobs show for these tests alone, and see nothing of what others have shown on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


# They ask for the kernel's collectives, or for memory that ranks share. The simulated device lies in such memory.
collect_ignore_glob = [] if SHARES else [
    *("test_node.py", "test_reproducible.py", "test_rules.py", "test_scheduled.py", "test_shared*.py"),
    *("test_unusable.py", "test_where_arrays_lie.py", "test_examples_of_calls.py", "test_cuda.py", "devices"),
    *("torch/test_device*.py", "torch/test_shared.py", "torch/programs/*device*.py"),
    "torch/programs/test_shared_memory.py",
]  # fmt: skip
