"""Which ranks wait for ever: those that wait for each other, and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from mpicoll.supervise.deadlock import Wait, stuck
from mpicoll.supervise.messages import Lock, RankStatus
from tests.pure.supervise.invented import status

HELD = Lock("c 1", 0, True)


def receives(*sources: int, **given: Any) -> RankStatus:
    return waiting(sources=[*sources], **{"source_tag": 0} | given)


def sends(*targets: int, **given: Any) -> RankStatus:
    return waiting(targets=[*targets], **{"target_tag": 0} | given)


def waiting(**given: Any) -> RankStatus:
    """A rank that waits for a message, and is in no call."""
    return status(**{"begun": 3, "number": 2, "waits": False, "message": "recv"} | given)


def locks(rank: int | None = 0, *, exclusive: bool = True, window: str = "c 1") -> RankStatus:
    return waiting(lock=Lock(window, rank, exclusive))


def sendrecv(other: int, sendtag: int, recvtag: int) -> RankStatus:
    return waiting(sources=[other], source_tag=recvtag, targets=[other], target_tag=sendtag)


def collective(number: int, **given: Any) -> RankStatus:
    return status(number=number, begun=number + 1, **given)


@pytest.mark.parametrize(
    ("statuses", "left", "expected"),
    [
        ([receives(1), receives(0)], (), {0, 1}),
        ([sends(1), sends(0)], (), {0, 1}),
        ([receives(1), receives(2), receives(0)], (), {0, 1, 2}),
        ([receives(1), sends(0)], (), ()),  # it may be a long message
        ([receives(1), sends(0), receives(1)], (), ()),  # after which rank 1 may go on
        ([receives(0, 1, 2), receives(0), receives(0)], (), {0, 1, 2}),  # of any rank
        ([receives(0, 1, 2), receives(0)], (), ()),  # rank 2 does not wait
        ([receives(0)], (), {0}),
        ([receives(0, under_way=True)], (), ()),
        ([receives(1), receives(0, under_way=True)], (), ()),
        ([receives(1, under_way=True), receives(2), receives(1)], (), {0, 1, 2}),
        ([receives(1), receives(0, alone=False)], (), ()),
        ([sendrecv(1, 0, 0), sendrecv(0, 0, 0)], (), ()),
        # One that waits for a lock waits for whoever holds it.
        ([locks(), receives(0, locks=[HELD])], (), {0, 1}),
        ([locks(exclusive=False), receives(0, locks=[HELD])], (), {0, 1}),
        ([locks(None, exclusive=False), receives(0, locks=[HELD])], (), {0, 1}),
        ([locks(), receives(0, locks=[Lock("c 1", None, False)])], (), {0, 1}),
        ([locks(exclusive=False), receives(0, locks=[Lock("c 1", 0, False)])], (), ()),  # they can share it
        ([locks(1), receives(0, locks=[HELD])], (), ()),
        ([locks(window="c 2"), receives(0, locks=[HELD])], (), ()),
        ([locks(), receives(2, locks=[HELD])], (), ()),  # it may go on, and give it up
        ([locks(), receives(0)], (), ()),
        # In a collective, a rank waits for those that have not come.
        ([receives(1, begun=2), collective(2)], (), {0, 1}),
        ([receives(1), collective(2)], (), ()),  # rank 0 has come to it, and left it
        ([receives(1, begun=2), collective(2, under_way=True)], (), ()),
        ([receives(1, begun=2), collective(2), collective(2)], (), {0, 1, 2}),
        # The root may not be so many calls ahead.
        ([receives(1, begun=2), collective(12, description="bcast of 6 float64 root 1", root=1, ahead=12)], (), ()),
        ([receives(1, begun=2), collective(13, description="bcast of 6 float64 root 1", root=1, ahead=12)], (), {0, 1}),
        # A bcast in which all ranks wait for all, and one for which a rank needs the root alone.
        ([receives(1, begun=2), collective(2, description="bcast of 6 float64 root 2")], (), {0, 1}),
        ([receives(1, begun=2), collective(2, description="bcast of 6 float64 root 0", root=0)], (), {0, 1}),
        ([receives(1, begun=2), collective(2, description="bcast of 6 float64 root 2", root=2)], (), ()),
        ([receives(1, begun=2), collective(2, description="bcast of 6 float64 root 1", root=1)], (), ()),
        ([receives(1), collective(2, description="bcast of 6 float64 root 0", root=0)], (), ()),
        ([receives(1, begun=2), collective(2, description="scatter_object root 0", root=0)], (), {0, 1}),
        # In a gather, the root alone needs the others.
        ([receives(1, begun=2), collective(2, description="gather of 6 float64 root 1", root=1)], (), {0, 1}),
        ([receives(1, begun=2), collective(2, description="gather of 6 float64 root 0", root=0)], (), ()),
        ([receives(1), collective(2, description="reduce sum of 6 float64 root 1", root=1)], (), ()),
        ([receives(1, begun=2), collective(2, description="allgather_object")], (), {0, 1}),
        # In a scan, a rank needs those before it.
        ([receives(1, begun=2), collective(2, description="scan sum of 6 float64")], (), {0, 1}),
        ([collective(2, description="scan sum of 6 float64"), receives(0, begun=2)], (), ()),
        ([collective(2, description="exscan sum of 6 float64"), receives(0, begun=2)], (), ()),
        ([receives(1, begun=2), collective(2, description="allgatherv of float64")], (), ()),
        ([collective(2), collective(3)], (), ()),  # all have come to what rank 0 is in
        ([collective(2), collective(2)], (), ()),
        # A message is taken by a receive with its tag, or with any.
        ([receives(1, source_tag=5), sends(0, target_tag=4)], (), {0, 1}),
        ([receives(1, source_tag=5), sends(0, target_tag=5)], (), ()),
        ([receives(1, source_tag=None), sends(0, target_tag=4)], (), ()),
        ([receives(1, source_tag=5, under_way=True), sends(0, target_tag=4)], (), ()),
        ([sendrecv(1, 4, 5), sendrecv(0, 4, 5)], (), {0, 1}),
        ([sendrecv(1, 4, 5), sendrecv(0, 5, 4)], (), ()),
        # Ranks that have left do nothing more.
        ([receives(1)], (1,), {0}),
        ([receives(1, 2)], (1,), ()),
        ([receives(1, 2)], (1, 2), {0}),
        ([receives(1), receives(2)], (2,), {0, 1}),
        ([sends(1)], (1,), {0}),
    ],
)
def test_who_waits_for_ever(statuses: list[RankStatus], left: tuple[int, ...], expected: Any) -> None:
    waits = {rank: Wait("c", range(3), each) for rank, each in enumerate(statuses)}
    assert stuck(waits, {"c": {rank: each.begun for rank, each in enumerate(statuses)}}, {*left}) == {*expected}


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ({"c": {0: 3, 1: 2}, "d": {0: 2, 1: 3}}, {0, 1}),
        ({"c": {0: 3, 1: 3}, "d": {0: 2, 1: 3}}, ()),  # rank 1 has come to the call of c, and left it
        ({"c": {0: 3}, "d": {0: 2, 1: 3}}, ()),  # rank 1 is not in c, or does not answer
    ],
)
def test_ranks_that_wait_in_two_communicators(begun: dict[str, dict[int, int]], expected: Any) -> None:
    assert stuck({0: Wait("c", [0, 1], collective(2)), 1: Wait("d", [0, 1], collective(2))}, begun, set()) == {
        *expected
    }


@pytest.mark.parametrize(("waiting", "expected"), [(receives(1), {0}), (sends(1), ()), (sendrecv(1, 0, 0), ())])
def test_a_rank_that_has_left_gives_nothing_and_may_take_something(waiting: RankStatus, expected: Any) -> None:
    assert stuck({0: Wait("c", range(3), waiting)}, {"c": {0: 1}}, set(), {1}) == {*expected}


def test_a_message_is_taken_in_its_communicator() -> None:
    waits = {0: Wait("c", [0, 1], receives(1)), 1: Wait("d", [0, 1], sends(0))}
    assert stuck(waits, {"c": {}, "d": {}}, set()) == {0, 1}
    assert not stuck({0: waits[0], 1: waits[1]._replace(communicator="c")}, {"c": {}}, set())
