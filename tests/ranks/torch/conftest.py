"""Every test finds the default group made, and five groups of which it can ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ranks.torch import api

if TYPE_CHECKING:
    from tests.devices.tensors import SimulatedGpu
    from tests.ranks.torch.cases import Group


def pytest_configure(config: pytest.Config) -> None:
    api.choose(config.getoption("--api"))


@pytest.fixture(autouse=True)
def default_group(pytestconfig: pytest.Config) -> bool:
    """Whether there is a default group: the one that was there, or a new one where the test before destroyed it.

    Ranks that are threads make their own."""
    if pytestconfig.getoption("--threads"):
        return False
    if not api.dist.is_initialized():
        api.dist.init_process_group("mpicoll")
    return True


@pytest.fixture
def groups(default_group: bool) -> list[Group]:
    """Groups of the default group's ranks, made once for each default group; collective."""
    from tests.ranks.torch.cases import make_groups

    return make_groups(api.dist.group.WORLD) if default_group else []


@pytest.fixture
def rank(default_group: bool) -> int:
    return api.dist.get_rank() if default_group else -1


@pytest.fixture
def size(default_group: bool) -> int:
    return api.dist.get_world_size() if default_group else -1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """A simulated GPU, on which calls of more than 64 bytes go in several pieces."""
    from mpicoll.fabrics.routes.devices import staged
    from tests.devices.simulated_queue import Costs
    from tests.devices.tensors import SimulatedGpu

    monkeypatch.setattr(staged, "PIECE", 64)
    return SimulatedGpu(Costs(delay=1e-3))
