"""How a test keeps a collective pending, and what it asks of handles.

A collective is pending for certain while another rank has not come to it. Where a test needs that, the other ranks
come only when a message, sent once it has seen what it wanted to see, lets them.
"""

from __future__ import annotations

from datetime import timedelta

import torch

from tests.torch.api import dist

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
