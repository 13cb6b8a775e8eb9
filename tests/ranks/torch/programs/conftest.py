"""Each program finds torch's default group made by ``init_process_group("mpicoll")``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import mpicoll.torch


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "programs" in item.path.parts:
            item.add_marker(pytest.mark.processes)


@pytest.fixture(scope="module", autouse=True)
def afterwards() -> Iterator[None]:
    """Destroy the default group: tests elsewhere make their own."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def default_group(pytestconfig: pytest.Config) -> bool:
    """Make the default group if the test before destroyed it, or if it is mpicoll.torch's own."""
    if pytestconfig.getoption("--threads"):
        return False
    if not dist.is_initialized():
        if mpicoll.torch.is_initialized():
            mpicoll.torch.destroy_process_group()
        dist.init_process_group("mpicoll")
    torch.manual_seed(0)
    return True
