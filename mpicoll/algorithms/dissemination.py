"""Dissemination. In each step, every rank tells what it knows to a rank twice as far away as before."""

from __future__ import annotations

from mpicoll.algorithms.steps import SCRATCH, Place, Recv, Send, Steps


def barrier(at: Place) -> Steps:
    """In step k, each rank signals to the rank 2^k after it, and waits for the signal of the rank 2^k before it.

    Cost: log2(p) a
    Source: Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, IJPP 17 (1988)
    """
    distance = 1
    while distance < at.size:
        after, before = (at.rank + distance) % at.size, (at.rank - distance) % at.size
        yield (Send(after, (), SCRATCH), Recv(before, (), SCRATCH))
        distance *= 2
