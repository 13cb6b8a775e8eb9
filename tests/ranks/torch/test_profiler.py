"""torch's profilers see collectives, by the names that torch gives its own backends' (``gloo:all_reduce``)."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.ranks.torch.api import dist
from tests.ranks.torch.cases import FUNCTIONS

pytestmark = pytest.mark.processes  # torch profiles one thread


def seen(profiled: profile) -> Counter[str]:
    return Counter(event.name for event in profiled.events() if event.name.startswith("mpicoll:"))


def test_every_collective(size: int) -> None:
    x, whole = torch.ones(2), torch.ones(size, 2)
    parts = [torch.empty(2) for _ in range(size)]
    first = dist.get_rank() == 0
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        dist.all_reduce(x)
        dist.reduce(x, 0)
        dist.broadcast(x, 0)
        dist.all_gather(parts, x)
        dist.all_gather_into_tensor(whole, x)
        dist.gather(x, parts if first else None, 0)
        dist.scatter(x, parts if first else None, 0)
        dist.reduce_scatter(x, parts)
        dist.reduce_scatter_tensor(x, whole.view(-1))
        dist.all_to_all(parts, [x] * size)
        dist.all_to_all_single(whole, whole.clone())
        dist.barrier()
    assert seen(profiled) == Counter(f"mpicoll:{name}" for name in (*FUNCTIONS, "barrier"))


def test_a_call_after_one_whose_callbacks_still_run() -> None:
    """It waits for them in its own thread. The way through the group's thread would be another wait, and cost more."""
    before = dist.all_reduce(torch.ones(1), async_op=True)
    ended: list[bool] = []

    def slowly(_: object) -> None:
        time.sleep(0.2)
        ended.append(True)

    before.get_future().then(slowly)
    before.wait()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        dist.all_reduce(torch.ones(1))
    assert ended
    assert seen(profiled) == Counter(["mpicoll:all_reduce"])


def test_asynchronous() -> None:
    """The call is one range, and each wait is another. A profiler may start or stop between the two."""
    before = dist.all_reduce(torch.ones(1), async_op=True)
    with profile(activities=[ProfilerActivity.CPU]):
        before.wait()
        after = dist.all_reduce(torch.ones(1), async_op=True)
    after.wait()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        dist.all_reduce(torch.ones(1000), async_op=True).wait()
    assert seen(profiled) == Counter(["mpicoll:all_reduce", "mpicoll:wait"])
