"""Asynchronous calls: their order, their handles, and what becomes of them when nobody waits.

A collective is pending for certain while another rank has not come to it. Where a test needs that, the other ranks
come only when a message, sent once it has seen what it wanted to see, lets them.
"""

from __future__ import annotations

import gc
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch

from mpicoll.errors import ArgumentError, MessageError, MpicollError, StateError, TimeoutError
from tests.torch.api import dist, ours_alone
from tests.torch.cases import Group

SHORT = timedelta(milliseconds=20)


def started(work: dist.Work | None) -> dist.Work:
    assert isinstance(work, dist.Work)
    return work


def let_go(rank: int, size: int) -> None:
    """Rank 0 lets the others, who wait in ``held``, go on."""
    assert rank == 0
    for r in range(1, size):
        dist.send(torch.ones(1), r, tag=7)


def held(rank: int) -> None:
    """The others wait here for rank 0; it does not."""
    if rank != 0:
        dist.recv(torch.empty(1), 0, tag=7)


@pytest.mark.mpi(min_size=2)
def test_a_pending_collective_says_so(rank: int, size: int) -> None:
    held(rank)
    x = torch.ones(3)
    work = started(dist.all_reduce(x, async_op=True))
    if rank == 0:
        assert not work.is_completed()
        assert not work.is_success()
        assert work.exception() is None
        with pytest.raises(TimeoutError, match=r"wait: .* not complete after 0:00:00\.02") as caught:
            work.wait(SHORT)
        assert isinstance(caught.value, MpicollError)
        assert not work.is_completed()
        let_go(rank, size)
    assert work.wait(timedelta(minutes=1)) is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.wait() is True
    assert x.tolist() == [float(size)] * 3


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_pending_receive_says_so(rank: int, size: int, receiving: bool) -> None:
    """Rank 1 sends, after rank 0 has seen that nothing has come."""
    x = torch.zeros(2) if rank == 0 else torch.ones(2)
    if rank == 0:
        work = started(dist.irecv(x, 1 if receiving else None))
        assert not work.is_completed()
        assert not work.is_success()
        with pytest.raises(TimeoutError, match="the message was not complete"):
            work.wait(SHORT)
        dist.send(torch.ones(1), 1, tag=7)
        assert work.wait(timedelta(minutes=1)) is True
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.source_rank() == 1
        assert x.tolist() == [1, 1]
    elif rank == 1:
        dist.recv(torch.empty(1), 0, tag=7)
        work = started(dist.isend(x, 0))
        assert work.wait() is True
        assert work.is_completed()


@pytest.mark.mpi(min_size=2)
def test_messages_pass_pending_collectives(rank: int, size: int) -> None:
    """Between all pairs, in the group and in others, while the group's worker is in a collective."""
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
    """Rank 0 comes to the synchronous call while what is before it is pending, and leaves with all of it done."""
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


def test_ranks_may_mix_async_and_synchronous_calls(rank: int, size: int) -> None:
    for turn in range(2 * size):
        x = torch.full((7,), rank + turn, dtype=torch.int64)
        work = dist.all_reduce(x, async_op=turn % size == rank)
        assert (work is None) == (turn % size != rank)
        if work is not None:
            work.wait()
        assert x.tolist() == [sum(range(size)) + turn * size] * 7


def test_many_under_way_in_two_groups(groups: list[Group], rank: int) -> None:
    """A hundred in each of two groups, waited for from the last to the first."""
    world, backwards = groups[0], groups[4]
    works, found = [], []
    for i in range(100):
        for g in (world, backwards):
            x = torch.full((3,), float(i), dtype=torch.bfloat16 if i % 2 else torch.float32)
            root = i % g.size
            if g.rank == root:
                x += 1
            works.append(started(dist.broadcast(x, group=g.handle, group_src=root, async_op=True)))
            found.append((x, i + 1))
    for work in reversed(works):
        work.wait()
    for x, expected in found:
        assert x.tolist() == [expected] * 3


@pytest.mark.mpi(min_size=2)
def test_groups_do_not_wait_for_each_other(groups: list[Group], rank: int, size: int) -> None:
    """With the world's collective pending, another group's goes through."""
    held_back = torch.ones(2)
    if rank == 0:
        pending = started(dist.all_reduce(held_back, async_op=True))
    x = torch.ones(2)
    dist.all_reduce(x, group=groups[4].handle)
    if rank == 0:
        assert not pending.is_completed()
        let_go(rank, size)
    else:
        held(rank)
        pending = started(dist.all_reduce(held_back, async_op=True))
    pending.wait()
    assert x.tolist() == [size] * 2
    assert held_back.tolist() == [size] * 2


@pytest.mark.mpi(min_size=2)
def test_a_group_is_made_while_a_collective_is_pending(rank: int, size: int) -> None:
    x = torch.ones(2)
    if rank == 0:
        pending = started(dist.all_reduce(x, async_op=True))
    g = dist.new_group(list(range(size)))
    y = torch.ones(2)
    dist.all_reduce(y, group=g)
    assert y.tolist() == [size] * 2
    if rank == 0:
        assert not pending.is_completed()
        let_go(rank, size)
    else:
        held(rank)
        pending = started(dist.all_reduce(x, async_op=True))
    pending.wait()
    assert x.tolist() == [size] * 2
    dist.destroy_process_group(g)


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


@pytest.mark.mpi(min_size=2)
def test_callbacks_run_though_nobody_waits(rank: int, size: int) -> None:
    held(rank)
    x = torch.ones(2)
    called = threading.Event()
    work: Any = started(dist.all_reduce(x, async_op=True))
    work.get_future().add_done_callback(lambda _: called.set())
    if rank == 0:
        assert not called.is_set()
        let_go(rank, size)
    assert called.wait(60)
    assert x.tolist() == [size] * 2


@pytest.mark.mpi(min_size=2)
def test_tensors_live_until_they_are_not_needed(rank: int, size: int) -> None:
    """The program drops every tensor and list while the calls are pending, and its memory is made use of."""
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


@pytest.mark.mpi(min_size=2)
def test_a_message_lives_until_it_is_sent(rank: int, size: int) -> None:
    n = 300_000  # more than any MPI sends before the receiver asks for it
    if rank == 0:
        works = [started(dist.isend(torch.full((n,), 3.0)[::2], r)) for r in range(1, size)]
        gc.collect()
        litter = torch.full((n,), -1.0)
        let_go(rank, size)
        for work in works:
            work.wait()
        assert litter.mean() == -1
    else:
        held(rank)
        x = torch.zeros(n // 2)
        dist.recv(x, 0)
        assert (x == 3).all()


@pytest.mark.mpi(min_size=2)
def test_a_failure_is_in_the_handle(rank: int, size: int) -> None:
    """What goes wrong on the way is raised where the program waits, each time it does, and the next call works."""
    x = torch.zeros(2 if rank == 0 else 3)
    outs = [torch.zeros_like(x) for _ in range(size)]
    work: Any = started(dist.all_gather(outs, x, async_op=True))
    future = work.get_future()
    for _ in range(2):
        with pytest.raises(MessageError, match=r"all_gather: expected tensors of one shape and dtype on all ranks"):
            work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), MessageError)
    with pytest.raises(MessageError):
        work.result()
    with pytest.raises((MessageError, RuntimeError), match="one shape"):
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


@pytest.mark.mpi(min_size=2)
def test_batches(rank: int, size: int) -> None:
    """Around the ring, both ways at once, receives after sends, of a dtype and a layout of each."""
    right, left = (rank + 1) % size, (rank - 1) % size
    whole = torch.zeros(2, 6, dtype=torch.int32)
    from_left, from_right = torch.zeros(3, dtype=torch.bfloat16), whole[:, ::2]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((3,), rank, dtype=torch.bfloat16), right, tag=1),
            dist.P2POp(dist.isend, torch.full((3, 2), rank, dtype=torch.int32).T, group_peer=left, tag=2),
            dist.P2POp(dist.irecv, from_right, right, tag=2),
            dist.P2POp(dist.irecv, from_left, left, tag=1),
        ]
    )
    assert len(works) == 4
    for work in works:
        assert work.wait() is True
    assert [work.source_rank() for work in works[2:]] == [right, left]
    assert from_left.tolist() == [left] * 3
    assert from_right.tolist() == [[right] * 3] * 2
    assert whole[:, 1::2].tolist() == [[0] * 3] * 2


@pytest.mark.mpi(min_size=2)
def test_a_receive_from_anyone_says_from_whom(groups: list[Group], rank: int, size: int) -> None:
    """In the reversed group, too, whose ranks are not the global ones."""
    for g in (groups[0], groups[4]):
        if rank == 0:
            seen = {}
            for _ in range(1, size):
                x = torch.zeros(1)
                sender = dist.recv(x, group=g.handle)
                seen[sender] = x.item()
            assert seen == {r: float(r) for r in range(1, size)}
        else:
            dist.send(torch.tensor([float(rank)]), 0, group=g.handle)
        dist.barrier()


@pytest.mark.mpi(min_size=2)
def test_tags_tell_messages_apart(rank: int) -> None:
    if rank == 0:
        works = [started(dist.isend(torch.tensor([tag]), 1, tag=tag)) for tag in (3, 1, 2)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (1, 2, 3):
            x = torch.zeros(1, dtype=torch.int64)
            assert dist.recv(x, 0, tag=tag) == 0
            assert x.item() == tag


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [3, 5])
def test_a_message_of_another_length_is_an_error(rank: int, length: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), 1)
    elif rank == 1:
        with pytest.raises(MessageError, match="recv"):
            dist.recv(torch.zeros(length), 0)
    dist.barrier()


def test_a_message_to_oneself(rank: int) -> None:
    x = torch.zeros(3)
    receive = started(dist.irecv(x, rank))
    started(dist.isend(torch.ones(3), rank)).wait()
    receive.wait()
    assert x.tolist() == [1, 1, 1]


def test_a_message_has_no_future(rank: int) -> None:
    """It would never be complete."""
    x = torch.zeros(3)
    receive, send = started(dist.irecv(x, rank)), started(dist.isend(torch.ones(3), rank))
    for work in (receive, send):
        with pytest.raises(StateError, match="get_future: only a collective has a future"):
            work.get_future()
        work.wait()
    assert x.tolist() == [1, 1, 1]


def test_a_failure_that_nobody_waits_for_is_raised_when_the_group_is_destroyed() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    if dist.get_world_size() > 1:
        tensor = torch.ones(dist.get_rank() + 1)
        dist.all_gather([torch.ones_like(tensor) for _ in range(dist.get_world_size())], tensor, group, async_op=True)
        with pytest.raises(MessageError, match=r"all_gather: .* one shape"):
            dist.destroy_process_group(group)
    else:
        dist.destroy_process_group(group)
    with pytest.raises(StateError, match="destroyed"):
        dist.barrier(group)


def test_a_timeout_that_is_no_timedelta() -> None:
    tensor = torch.ones(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    works = [
        dist.all_reduce(tensor, async_op=True),
        dist.irecv(torch.empty(1), (rank - 1) % size),
        dist.isend(torch.ones(1), (rank + 1) % size),
    ]
    for work in works:
        assert work is not None
        with pytest.raises(ArgumentError, match=r"wait: timeout: expected a datetime.timedelta; given 5"):
            work.wait(timeout=5)
        assert work.wait()


def test_a_callback_may_wait_and_start_collectives_of_its_own() -> None:
    x, y = torch.ones(3), torch.full((2,), 2.0)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None

    def then(future: torch.futures.Future[Any]) -> torch.Tensor:
        assert work.wait()
        second = dist.all_reduce(y, async_op=True)
        assert second is not None
        second.wait()
        return y + future.value()[0][0]

    result = work.get_future().then(then).wait()
    assert (result == 3 * dist.get_world_size()).all()


@ours_alone("torch starts the messages of a batch one after another, and looks at each then")
@pytest.mark.mpi(min_size=2)
def test_a_refused_batch_leaves_no_receive_behind() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    refused, y = torch.zeros(2), torch.zeros(2)
    ops = [
        dist.P2POp(dist.irecv, refused, (rank - 1) % size),
        dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size, tag=-1),
    ]
    with pytest.raises(ArgumentError, match="isend: tag"):
        dist.batch_isend_irecv(ops)
    received = dist.irecv(y, (rank - 1) % size)
    sent = dist.isend(torch.full((2,), 7.0), (rank + 1) % size)
    assert received is not None
    assert sent is not None
    received.wait()
    sent.wait()
    assert (y == 7).all()
    assert not refused.any()


def test_ranks_may_differ_in_whether_they_pass_split_sizes() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.zeros(size)
    sizes = [1] * size if rank == 0 else None
    dist.all_to_all_single(out, torch.arange(size, dtype=torch.float32) + 10 * rank, sizes, sizes)
    assert out.tolist() == [rank + 10.0 * r for r in range(size)]
