"""Algorithms, for tests: one by its name, and one that mpicoll does not have."""

from __future__ import annotations

from mpicoll.algorithms import Algorithm, find
from mpicoll.algorithms.steps import INPUT, OUTPUT, Place, Recv, RecvReduce, Send, Steps, one


def known(collective: str, name: str) -> Algorithm:
    found = find(collective, name)
    assert found is not None
    return found


def star(at: Place) -> Steps:
    """All send to rank 0, which sends all the result.

    Cost: 2(p-1) (a + n b)
    Source: a test"""
    if at.rank:
        yield (Send(0, one(0), INPUT),)
        yield (Recv(0, one(0), OUTPUT),)
        return
    for peer in range(1, at.size):
        yield (RecvReduce(peer, one(0), INPUT if peer == 1 else OUTPUT, OUTPUT, mine_first=True),)
    yield tuple(Send(peer, one(0), OUTPUT) for peer in range(1, at.size))
