"""Pairwise exchange. In step k, each rank sends to the rank k after it and receives from the rank k before it.

Each block travels once, straight to where it belongs.
"""

from __future__ import annotations

from mpicoll.algorithms.steps import INPUT, OUTPUT, Copy, Place, Recv, RecvReduce, Send, Space, Steps, one


def reduce_scatter(at: Place) -> Steps:
    """In step k, each rank sends the rank k after it that rank's block, and adds the block that it receives to its own.

    Cost: (p-1) a + (p-1)/p n b + (p-1)/p n g
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    mine: Space = INPUT
    for step in range(1, at.size):
        after, before = (at.rank + step) % at.size, (at.rank - step) % at.size
        yield (Send(after, one(after), INPUT), RecvReduce(before, one(at.rank), mine, OUTPUT, mine_first=False))
        mine = OUTPUT


def alltoall(at: Place) -> Steps:
    """In step k, each rank sends to the rank k after it and receives from the rank k before it.

    Cost: (p-1) a + (p-1)/p n b
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    yield (Copy(one(at.rank), INPUT, OUTPUT),)
    for step in range(1, at.size):
        after, before = (at.rank + step) % at.size, (at.rank - step) % at.size
        yield (Send(after, one(after), INPUT), Recv(before, one(before), OUTPUT))
