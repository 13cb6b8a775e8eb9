"""Asynchronous collectives: their order, their handles, and what becomes of them when nobody waits."""

from __future__ import annotations

import gc
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch

from mpicoll.errors import ArgumentError, MessageError, MpicollError, StateError, TimeoutError
from tests.ranks.torch.api import dist
from tests.ranks.torch.cases import SHORT, Group, held, let_go, started


@pytest.mark.mpi(min_size=2)
def test_a_pending_collective_says_so(rank: int, size: int) -> None:
    """Its callbacks run though nobody waits."""
    held(rank)
    x, called = torch.ones(3), threading.Event()
    work = started(dist.all_reduce(x, async_op=True))
    work.get_future().add_done_callback(lambda _: called.set())
    if rank == 0:
        assert not work.is_completed()
        assert not called.is_set()
        assert not work.is_success()
        assert work.exception() is None
        with pytest.raises(TimeoutError, match=r"wait: .* not complete after 0:00:00\.02") as caught:
            work.wait(SHORT)
        assert isinstance(caught.value, MpicollError)
        assert not work.is_completed()
        let_go(rank, size)
    assert called.wait(60)
    assert work.wait(timedelta.max) is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.wait() is True
    assert x.tolist() == [float(size)] * 3


@pytest.mark.mpi(min_size=2)
def test_messages_pass_pending_collectives(rank: int, size: int) -> None:
    """Messages arrive while the group's worker is in a collective."""
    x = torch.ones(1000)
    if rank == 0:
        work = started(dist.all_reduce(x, async_op=True))
        found = [torch.zeros(4) for _ in range(1, size)]
        receives = [started(dist.irecv(f, r)) for r, f in enumerate(found, 1)]
        for r in range(1, size):
            dist.send(torch.full((4,), float(r)), r)
        for receive in receives:
            receive.wait()
        assert [f.tolist() for f in found] == [[r + 0.5] * 4 for r in range(1, size)]
        assert not work.is_completed()
        let_go(rank, size)
    else:
        mine = torch.zeros(4)
        dist.recv(mine, 0)
        dist.send(mine + 0.5, 0)
        held(rank)
        work = started(dist.all_reduce(x, async_op=True))
    work.wait()
    assert x.tolist() == [float(size)] * 1000


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("then", ["all_reduce", "object", "list"])
def test_a_synchronous_call_queues_behind_the_pending(rank: int, size: int, then: str) -> None:
    """Rank 0 calls it while asynchronous collectives are pending. When it returns, they are complete."""
    held(rank)
    x = torch.ones(5)
    works = [started(dist.all_reduce(x, async_op=True)) for _ in range(4)]
    if rank == 0:
        assert not works[0].is_completed()
        threading.Timer(0.05, let_go, (rank, size)).start()
    total = float(size**4)
    if then == "all_reduce":
        dist.all_reduce(x)
        total *= size
    elif then == "object":
        found: list[Any] = [None] * size
        dist.all_gather_object(found, rank)
        assert found == list(range(size))
    else:
        outs = [torch.zeros(5) for _ in range(size)]
        dist.all_gather(outs, x)
        assert all(o.tolist() == [total] * 5 for o in outs)
    assert all(work.is_completed() for work in works)
    assert x.tolist() == [total] * 5


@pytest.mark.mpi(min_size=2)
def test_groups_do_not_wait_for_each_other(groups: list[Group], rank: int, size: int) -> None:
    """Groups are made, and their collectives complete, while one of the default group is pending."""
    held_back = torch.ones(2)
    if rank == 0:
        pending = started(dist.all_reduce(held_back, async_op=True))
    made = dist.new_group(list(range(size)))
    for group in (groups[4].handle, made):
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [size] * 2
    if rank == 0:
        assert not pending.is_completed()
        let_go(rank, size)
    else:
        held(rank)
        pending = started(dist.all_reduce(held_back, async_op=True))
    pending.wait()
    assert held_back.tolist() == [size] * 2
    dist.destroy_process_group(made)


def test_futures(size: int) -> None:
    x = torch.ones(2)
    work: Any = started(dist.all_reduce(x, async_op=True))
    averaged = work.get_future().then(lambda f: f.value()[0] / size)
    assert averaged.wait().tolist() == [1, 1]
    assert [r.tolist() for r in work.result()] == [[size] * 2]
    outs = [torch.empty(1) for _ in range(size)]
    gathered: Any = started(dist.all_gather(outs, torch.ones(1), async_op=True))
    assert len(gathered.get_future().wait()) == size
    assert gathered.result()[0] is outs[0]
    barrier: Any = started(dist.barrier(async_op=True))
    assert barrier.get_future().wait() == []
    for _ in range(100):  # a wait returns after the callbacks, as with gloo
        ran: list[bool] = []
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future().then(lambda _, ran=ran: ran.append(True))
        work.wait()
        assert ran
        assert future.done()


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
def test_tensors_live_until_they_are_not_needed(rank: int, size: int) -> None:
    """The program drops every tensor and list while the calls are pending, and writes to new memory."""
    held(rank)
    n = 5000
    out = torch.zeros(size * n)
    ins = [torch.full((n,), float(rank)) for _ in range(4)]
    alive = [weakref.ref(x) for x in ins]
    first = started(dist.all_gather_into_tensor(out, ins[0], async_op=True))
    blocks = [torch.full((1,), float(10 * rank + r)) for r in range(size)]
    others = [torch.zeros(1) for _ in range(size)]
    works = [
        first,
        started(dist.all_reduce(ins[1], async_op=True)),
        started(dist.broadcast(ins[2], 0, async_op=True)),
        started(dist.gather(ins[3], [torch.empty(n) for _ in range(size)] if rank == 0 else None, async_op=True)),
        started(dist.all_to_all(others, blocks, async_op=True)),
    ]
    del ins, blocks
    gc.collect()
    litter = [torch.full((n,), -1.0) for _ in range(8)]
    if rank == 0:
        assert not first.is_completed()
        assert all(a() is not None for a in alive)
        let_go(rank, size)
    for work in works:
        work.wait()
    assert out.view(size, n).mean(1).tolist() == list(range(size))
    assert [o.item() for o in others] == [10 * r + rank for r in range(size)]
    assert all(x.mean() == -1 for x in litter)


def call_that_fails(group: Any) -> Any:
    """On every rank: it expects two rows of each, and is sent one."""
    n = dist.get_world_size()
    return dist.all_to_all_single(torch.zeros(2 * n), torch.zeros(n), [2] * n, [1] * n, group, async_op=True)


def test_a_failure_is_in_the_handle(size: int) -> None:
    """Every wait raises what went wrong, and the next call works."""
    work: Any = started(call_that_fails(dist.new_group()))
    future = work.get_future()
    for _ in range(2):
        with pytest.raises(MessageError, match=r"alltoallv: expected 2 elements from rank \d; it sends 1"):
            work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), MessageError)
    with pytest.raises(MessageError):
        work.result()
    with pytest.raises((MessageError, RuntimeError), match="it sends 1"):
        future.wait()
    y = torch.ones(1)
    dist.all_reduce(y)
    assert y.item() == size


@pytest.mark.mpi(min_size=2)
def test_destroying_completes_what_is_pending(rank: int, size: int) -> None:
    g = dist.new_group(list(range(size)))
    held(rank)
    x = torch.ones(4)
    works = [started(dist.all_reduce(x, group=g, async_op=True)) for _ in range(3)]
    if rank == 0:
        assert not works[0].is_completed()
        threading.Timer(0.05, let_go, (rank, size)).start()
    dist.destroy_process_group(g)
    assert all(work.is_success() for work in works)
    assert x.tolist() == [float(size**3)] * 4


def test_a_failure_that_nobody_waits_for_is_raised_when_the_group_is_destroyed() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    call_that_fails(group)
    with pytest.raises(MessageError, match=r"alltoallv: .* it sends 1"):
        dist.destroy_process_group(group)
    with pytest.raises(StateError, match="destroyed"):
        dist.barrier(group)


def test_a_timeout_that_is_no_timedelta(rank: int) -> None:
    for work in (
        dist.all_reduce(torch.ones(1), async_op=True),
        dist.irecv(torch.empty(1), rank),
        dist.isend(torch.ones(1), rank),
    ):
        with pytest.raises(ArgumentError, match=r"wait: timeout: expected a datetime.timedelta; given 5"):
            work.wait(timeout=5)
        assert work.wait()


def test_a_callback_may_wait_and_start_collectives_of_its_own() -> None:
    x, y = torch.ones(3), torch.full((2,), 2.0)
    work = dist.all_reduce(x, async_op=True)

    def then(future: torch.futures.Future[Any]) -> torch.Tensor:
        assert work.wait()
        second = dist.all_reduce(y, async_op=True)
        second.wait()
        return y + future.value()[0][0]

    result = work.get_future().then(then).wait()
    assert (result == 3 * dist.get_world_size()).all()


def test_ranks_may_differ_in_whether_they_pass_split_sizes(rank: int, size: int) -> None:
    out = torch.zeros(size)
    sizes = [1] * size if rank == 0 else None
    dist.all_to_all_single(out, torch.arange(size, dtype=torch.float32) + 10 * rank, sizes, sizes)
    assert out.tolist() == [rank + 10.0 * r for r in range(size)]
