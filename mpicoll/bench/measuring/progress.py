"""A progress bar, if the output goes to a terminal."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any, Self

__all__ = ["TERMINAL", "Progress", "on_terminal"]

TERMINAL = "MPICOLL_BENCH_TERMINAL"
"""The environment variable that tells the ranks the width of the terminal. Their own stderr is a pipe."""


def on_terminal() -> dict[str, str]:
    """The variable to add to the ranks' environment. Says so if there can be no bar on this terminal."""
    if not sys.stderr.isatty():
        return {}
    if find_spec("tqdm") is None:
        print("mpicoll: no progress bar: tqdm is not installed (pip install tqdm)", file=sys.stderr)
    return {TERMINAL: str(os.get_terminal_size(sys.stderr.fileno()).columns or 80)}


class Progress:
    """Counts the measured sizes. Writes the table's lines without disturbing the bar."""

    def __init__(self, total: int, mine: bool) -> None:
        self._mine = mine
        self._bar: Any = None
        columns = int(os.environ.get(TERMINAL) or 0)
        if mine and columns:
            try:
                from tqdm import tqdm
            except ImportError:
                return
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
        if not self._mine:
            return
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)
            sys.stdout.flush()
