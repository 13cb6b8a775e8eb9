"""Two threads of a rank that call collectives of one group at once, and those that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from mpicoll.errors import StateError
from tests.ranks.torch.api import dist

pytestmark = pytest.mark.processes


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Other threads. The result of what they do raises what they raised."""
    with ThreadPoolExecutor() as threads:
        yield threads


def summed(group: Any, async_op: bool = False) -> None:
    x = torch.ones(3)
    work = dist.all_reduce(x, group=group, async_op=async_op)
    if work is not None:
        work.wait()
    assert (x == dist.get_world_size()).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "second",
    [lambda g: summed(g), lambda g: summed(g, True), lambda g: dist.barrier(g)],
    ids=["sum", "async", "barrier"],
)
@pytest.mark.parametrize("first", [lambda g: summed(g), lambda g: dist.barrier(g)], ids=["sum", "barrier"])
def test_both_at_once(
    first: Callable[[Any], None], second: Callable[[Any], None], rank: int, others: ThreadPoolExecutor
) -> None:
    """The second thread is refused, and so is every later call."""
    group = dist.new_group()
    said = r"two threads called its collectives at once.* dist\.new_group\(\), which an async_save takes"
    if rank == 0:
        one = others.submit(first, group)
        while not group.comm._engine.recorder.under_way:
            time.sleep(0.001)
        for _ in range(2):
            with pytest.raises(StateError, match=said):
                second(group)
        dist.barrier()
        one.result()
    else:
        dist.barrier()
        first(group)
    summed(None)


def test_a_group_for_each_thread(others: ThreadPoolExecutor) -> None:
    groups = [dist.new_group() for _ in range(2)]

    def often(group: Any) -> None:
        for _ in range(50):
            summed(group)

    for async_op in (False, True):  # they may take turns
        others.submit(summed, None, async_op).result()
        summed(None, async_op)
    works = [others.submit(often, g) for g in groups]
    often(None)
    for work in works:
        work.result()


def test_what_a_callback_calls_comes_before_what_is_called_later(size: int) -> None:
    """On every rank: this thread may be at its next call before the callback has come to its own, or after."""
    for _ in range(100):
        x, y, z = torch.ones(1), torch.full((1,), 10.0), torch.full((1,), 100.0)
        work = dist.all_reduce(x, async_op=True)
        late = work.get_future().then(lambda _, y=y: dist.all_reduce(y))
        work.wait()
        dist.all_reduce(z)
        late.wait()
        assert [float(v) for v in (x, y, z)] == [size, 10 * size, 100 * size]
