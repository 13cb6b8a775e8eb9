"""A progress bar, if the output goes to a terminal."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any, Self

TERMINAL = "MPICOLL_BENCH_TERMINAL"
"""The environment variable that tells the ranks the width of the terminal. Their own stderr is a pipe."""


def on_terminal() -> dict[str, str]:
    """The variable to add to the ranks' environment. Says so if there can be no bar on this terminal."""
    if not sys.stderr.isatty():
        return {}
    if find_spec("tqdm") is None:
        print("mpicoll: no progress bar: tqdm is not installed (pip install tqdm)", file=sys.stderr)
    return {TERMINAL: str(os.get_terminal_size(sys.stderr.fileno()).columns or 80)}


class Lines:
    """Writes lines without disturbing the bar, if there is one."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def write(self, text: str) -> None:
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)
            sys.stdout.flush()


class Progress(Lines):
    """Counts the measured sizes and writes the table's lines, on the one rank for which ``mine`` is true."""

    def __init__(self, total: int, mine: bool) -> None:
        self._mine = mine
        columns = int(os.environ.get(TERMINAL) or 0)
        bar: Any = None
        if mine and columns and find_spec("tqdm") is not None:
            from tqdm import tqdm

            bar = tqdm(total=total, unit="size", ncols=min(columns, 100), leave=False, file=sys.stderr)
        super().__init__(bar)

    def at(self, what: str) -> None:
        """Show what is being measured now."""
        if self._bar is not None:
            self._bar.set_description(what)

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def write(self, text: str) -> None:
        if self._mine:
            super().write(text)
