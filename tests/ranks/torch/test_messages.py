"""Messages of tensors: pending ones, batches, tags, from any rank and to oneself. And Python objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from mpicoll.errors import ArgumentError, MessageError, StateError, TimeoutError
from tests.ranks.torch.api import dist, ours_alone, through_torch
from tests.ranks.torch.cases import SHORT, Group, started


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


@ours_alone("it is one of mpicoll's settings")
@pytest.mark.processes
@pytest.mark.mpi(min_size=2)
def test_a_receive_whose_time_is_up_has_failed(rank: int, size: int) -> None:
    """Also for those who ask later."""
    group = dist.new_group()
    group.engine.under_way.timeout = 0.2  # as where ranks agree on each call
    work = started(dist.irecv(torch.zeros(2), (rank + 1) % size, group))
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"irecv: no message came from rank . \(tag 0\) within 0.2 s"):
            work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), TimeoutError)
    dist.barrier()


@pytest.mark.mpi(min_size=2)
def test_batches(rank: int, size: int) -> None:
    """Messages go round the ring in both directions at once, with different dtypes and layouts."""
    for _ in range(3):  # a repeated message is what it was the first time
        batch(rank, (rank + 1) % size, (rank - 1) % size)


def batch(rank: int, right: int, left: int) -> None:
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


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("in_group", [False, True])
def test_begun_again_in_each_group(groups: list[Group], which: int, in_group: bool) -> None:
    """Also in the reversed group: a rank that the kernel has learned is one of the group, not of the job."""
    g = groups[which]
    if g.rank is None:
        return
    x, y = torch.zeros(2), torch.empty(2)
    for turn in range(8):
        by = 1 if turn % 2 else -1
        to, of = (g.rank + by) % g.size, (g.rank - by) % g.size
        x.fill_(10 * turn + g.rank)
        if in_group:
            works = dist.irecv(y, group=g.handle, group_src=of), dist.isend(x, group=g.handle, group_dst=to)
        else:
            works = dist.irecv(y, g.ranks[of], g.handle), dist.isend(x, g.ranks[to], g.handle)
        received, sent = map(started, works)
        assert received.wait() is True
        assert sent.wait() is True
        assert y.tolist() == [10 * turn + of] * 2
        assert received.source_rank() == (of if through_torch() else g.ranks[of])  # torch's is the group's


@pytest.mark.mpi(min_size=2)
def test_a_receive_from_anyone_says_from_whom(groups: list[Group], rank: int, size: int) -> None:
    """So it does in the reversed group, whose ranks are not the global ones."""
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
        for _ in range(2):
            dist.send(torch.ones(4), 1)
    elif rank == 1:
        with pytest.raises(MessageError, match="recv"):
            dist.recv(torch.zeros(length), 0)
        work = started(dist.irecv(torch.zeros(length), 0))
        for limit in (None, timedelta(minutes=1), None):
            with pytest.raises(MessageError, match="recv"):
                work.wait(limit)
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), MessageError)
    dist.barrier()


def test_a_message_has_no_future(rank: int) -> None:
    """A message's future would never be complete."""
    x = torch.zeros(3)
    receive, send = started(dist.irecv(x, rank)), started(dist.isend(torch.ones(3), rank))
    for work in (receive, send):
        with pytest.raises(StateError, match="get_future: only a collective has a future"):
            work.get_future()
        work.wait()
    assert x.tolist() == [1, 1, 1]


@ours_alone("torch starts the messages of a batch one after another, and looks at each then")
@pytest.mark.mpi(min_size=2)
def test_a_refused_batch_leaves_no_receive_behind(rank: int, size: int) -> None:
    refused, y = torch.zeros(2), torch.zeros(2)
    ops = [
        dist.P2POp(dist.irecv, refused, (rank - 1) % size),
        dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size, tag=-1),
    ]
    with pytest.raises(ArgumentError, match="isend: tag"):
        dist.batch_isend_irecv(ops)
    received = dist.irecv(y, (rank - 1) % size)
    sent = dist.isend(torch.full((2,), 7.0), (rank + 1) % size)
    received.wait()
    sent.wait()
    assert (y == 7).all()
    assert not refused.any()


# -- collectives and messages of Python objects --


def thing(rank: int) -> dict[str, Any]:
    return {"rank": rank, "nested": {"list": [rank] * rank, "tensor": torch.full((rank,), rank)}, "text": "é" * rank}


def same(found: Any, expected: dict[str, Any]) -> bool:
    tensors = found["nested"].pop("tensor"), expected["nested"].pop("tensor")
    return bool(found == expected) and torch.equal(*tensors)


@pytest.mark.parametrize("which", range(5))
def test_objects(groups: list[Group], which: int) -> None:
    """Every root of every group gets and sends nested objects with tensors, of different sizes on each rank."""
    g = groups[which]
    if g.rank is None:
        return
    found: list[Any] = [None] * g.size
    dist.all_gather_object(found, thing(g.rank), group=g.handle)
    assert all(same(x, thing(r)) for r, x in enumerate(found))
    for root in range(g.size):
        gathered: list[Any] | None = [None] * g.size if g.rank == root else None
        dist.gather_object(thing(g.rank), gathered, dst=g.ranks[root], group=g.handle)
        assert gathered is None or all(same(x, thing(r)) for r, x in enumerate(gathered))

        told = [thing(7), "text", 3.5] if g.rank == root else [None] * 3
        dist.broadcast_object_list(told, group_src=root, group=g.handle)
        assert same(told[0], thing(7))
        assert told[1:] == ["text", 3.5]

        mine: list[Any] = [None, "second"]
        given = [thing(r) for r in range(g.size)] if g.rank == root else None
        dist.scatter_object_list(mine, given, src=g.ranks[root], group=g.handle)
        assert same(mine[0], thing(g.rank))
        assert mine[1] == "second"


@pytest.mark.mpi(min_size=2)
def test_messages_of_objects(groups: list[Group], rank: int, size: int) -> None:
    for g in (groups[0], groups[4]):
        if rank == 0:
            dist.send_object_list([thing(3), "text"], 1, group=g.handle)
            dist.send_object_list([1], group_dst=g.ranks.index(1), group=g.handle, use_batch=True)
        elif rank == 1:
            told: list[Any] = [None, None]
            assert dist.recv_object_list(told, 0, group=g.handle) == 0
            assert same(told[0], thing(3))
            assert told[1] == "text"
            one: list[Any] = [None]
            anyone = {"src": 0} if through_torch() else {}  # it takes objects from a rank that is named alone
            assert dist.recv_object_list(one, **anyone, group=g.handle) == 0
            assert one == [1]
