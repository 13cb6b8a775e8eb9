"""Ctrl-C during a benchmark: the process that started the ranks tells them to stop after the size under way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["STOP", "seen"]

STOP = "MPICOLL_BENCH_STOP"
"""The path of a file that is there once the ranks are to stop."""


def seen(world: Intracomm) -> bool:
    """Whether to stop: rank 0 looks, and tells the others. Collective."""
    file = os.environ.get(STOP)  # a launcher may not hand it on to other nodes
    return bool(world.bcast(file is not None and Path(file).exists()))
