"""Which ranks wait for ever: those that wait for each other, and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from mpicoll.guard.watch.protocol import Account
from mpicoll.guard.watch.stuck import stuck


def account(**given: Any) -> Account:
    usual: dict[str, Any] = {
        "begun": 3,
        "state": "open",
        "number": 2,
        "description": "barrier",
        "site": "a.py:1 in f",
        "waits": False,
    }
    usual |= {"message": "recv", "sources": [], "targets": [], "alone": True, "under_way": False}
    usual |= {"seconds": 9.0, "stuck": 9.0, "where": "a.py:2 in g", "handles": "", "leaving": False}
    return Account(**usual | given)


def receives(*sources: int, **given: Any) -> Account:
    return account(sources=[*sources], **given)


def sends(*targets: int, **given: Any) -> Account:
    return account(targets=[*targets], **given)


def collective(number: int, **given: Any) -> Account:
    return account(waits=True, message=None, number=number, begun=number + 1, **given)


@pytest.mark.parametrize(
    ("accounts", "left", "expected"),
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
        ([account(sources=[1], targets=[1]), account(sources=[0], targets=[0])], (), ()),
        # In a collective, a rank waits for those that have not come.
        ([receives(1, begun=2), collective(2)], (), {0, 1}),
        ([receives(1), collective(2)], (), ()),  # rank 0 has come to it, and left it
        ([receives(1, begun=2), collective(2, under_way=True)], (), ()),
        ([receives(1, begun=2), collective(2), collective(2)], (), {0, 1, 2}),
        # A bcast needs the root alone. Here that is another rank, which has not come yet.
        ([receives(1, begun=2), collective(2, description="bcast of 6 float64 root 2")], (), ()),
        ([receives(1, begun=2), collective(2, description="allgather_object")], (), {0, 1}),
        ([receives(1, begun=2), collective(2, description="allgatherv of float64")], (), ()),
        ([collective(2), collective(3)], (), ()),  # all have come to what rank 0 is in
        ([collective(2), collective(2)], (), ()),
        # Ranks that have left do nothing more.
        ([receives(1)], (1,), {0}),
        ([receives(1, 2)], (1,), ()),
        ([receives(1, 2)], (1, 2), {0}),
        ([receives(1), receives(2)], (2,), {0, 1}),
        ([sends(1)], (1,), {0}),
    ],
)
def test_who_waits_for_ever(accounts: list[Account], left: tuple[int, ...], expected: Any) -> None:
    assert stuck(dict(enumerate(accounts)), {*left}) == {*expected}
