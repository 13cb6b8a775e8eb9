"""How a test keeps a collective pending, and what it asks of handles.

A collective is certainly pending while another rank has not come to it. A test that needs this holds the other ranks
back until rank 0 has seen what it looks for. Then rank 0 sends them a message.
"""

from __future__ import annotations

from datetime import timedelta

import torch

from tests.ranks.torch.api import dist

SHORT = timedelta(milliseconds=20)


def started(work: dist.Work | None) -> dist.Work:
    assert isinstance(work, dist.Work)
    return work


def let_go(rank: int, size: int) -> None:
    """Rank 0 lets the others go on, which wait in ``held``."""
    assert rank == 0
    for r in range(1, size):
        dist.send(torch.ones(1), r, tag=7)


def held(rank: int) -> None:
    """Every rank but rank 0 waits here until rank 0 calls ``let_go``."""
    if rank != 0:
        dist.recv(torch.empty(1), 0, tag=7)
