"""What a terminal shows and says while a benchmark runs: a progress bar, and Ctrl-C, after which the process that
started the ranks tells them to stop after the current size.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

TERMINAL = "MPICOLL_BENCH_TERMINAL"
"""The environment variable that tells the ranks the width of the terminal. Their own stderr is a pipe."""
STOP = "MPICOLL_BENCH_STOP"
"""The environment variable with the path of a file. When the file exists, the ranks are to stop."""


def on_terminal() -> dict[str, str]:
    """The variable to add to the ranks' environment. Says so if there can be no bar on this terminal."""
    if not sys.stderr.isatty():
        return {}
    if find_spec("tqdm") is None:
        print("mpicoll: no progress bar: tqdm is not installed (pip install tqdm)", file=sys.stderr)
    return {TERMINAL: str(os.get_terminal_size(sys.stderr.fileno()).columns or 80)}


class Progress:
    """Counts the measured sizes, and writes the table's lines without disturbing the bar, on the one rank for which
    ``mine`` is true."""

    def __init__(self, total: int, mine: bool) -> None:
        self._mine = mine
        self._bar: Any = None
        columns = int(os.environ.get(TERMINAL) or 0)
        if mine and columns and find_spec("tqdm") is not None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="size", ncols=min(columns, 100), leave=False, file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def at(self, what: str) -> None:
        """Show what is being measured now."""
        if self._bar is not None:
            self._bar.set_description(what)

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
            sys.stdout.flush()
        elif self._mine:
            print(text, flush=True)


def ask_to_stop(file: Path) -> None:
    """Ask the ranks to stop, and say so."""
    file.touch()
    print("\nmpicoll: ends after the size under way; Ctrl-C again ends at once", file=sys.stderr)


def asked_to_stop(world: Intracomm) -> bool:
    """Whether to stop. Rank 0 looks for the file and tells the others. Collective."""
    file = os.environ.get(STOP)  # a launcher may not pass the variable on to other nodes
    return bool(world.bcast(file is not None and Path(file).exists()))
