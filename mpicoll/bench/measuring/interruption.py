"""Ctrl-C during a benchmark: the process that started the ranks tells them to stop after the current size."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

STOP = "MPICOLL_BENCH_STOP"
"""The environment variable with the path of a file. When the file exists, the ranks are to stop."""


def ask(file: Path) -> None:
    """Ask the ranks to stop, and say so."""
    file.touch()
    print("\nmpicoll: ends after the size under way; Ctrl-C again ends at once", file=sys.stderr)


def seen(world: Intracomm) -> bool:
    """Whether to stop. Rank 0 looks for the file and tells the others. Collective."""
    file = os.environ.get(STOP)  # a launcher may not pass the variable on to other nodes
    return bool(world.bcast(file is not None and Path(file).exists()))
