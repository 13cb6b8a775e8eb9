"""Every test finds the default group made, and five groups of which it can ask."""

from __future__ import annotations

import pytest

import mpicoll.torch as dist
from tests.torch.cases import Group, make_groups


@pytest.fixture(autouse=True)
def default_group() -> None:
    """A default group: the one that is there, or a new one where the test before destroyed it."""
    if not dist.is_initialized():
        dist.init_process_group("mpicoll")


@pytest.fixture
def groups(default_group: None) -> list[Group]:
    """Groups of the default group's ranks, made once for each default group; collective."""
    return make_groups(dist.group.WORLD)


@pytest.fixture
def rank(default_group: None) -> int:
    return dist.get_rank()


@pytest.fixture
def size(default_group: None) -> int:
    return dist.get_world_size()
