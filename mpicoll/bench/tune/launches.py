"""Starting the launches, and what is shown meanwhile."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpicoll.bench.measuring.interruption import STOP, ask
from mpicoll.bench.measuring.progress import Lines
from mpicoll.bench.tune.cells import Cell
from mpicoll.errors import LaunchError
from mpicoll.launch import launcher
from mpicoll.units import size_text

__all__ = ["Found", "Launching", "Order", "Progress", "launch"]

_LOOKS = 0.5


@dataclass(frozen=True)
class Order:
    """What the ranks of a launch are to do: measure these algorithms of each cell. They begin with no cell after
    ``at_most`` seconds. ``fit`` asks for the machine of the cost model."""

    cells: Sequence[tuple[Cell, Sequence[str]]] = ()
    at_most: float = 3600.0
    fit: bool = False

    def text(self) -> str:
        cells = [[*cell, [*names]] for cell, names in self.cells]
        return json.dumps({"cells": cells, "at_most": self.at_most, "fit": self.fit})


@dataclass(frozen=True)
class Found:
    """What a launch has found, as its rank 0 says it, how many seconds it took, and whether somebody ended it."""

    said: list[dict[str, Any]]
    seconds: float
    interrupted: bool


class Progress(Lines):
    """How much of the time has passed, as a bar on a terminal. Elsewhere it is a line for each launch."""

    def __init__(self, seconds: float) -> None:
        self._began, self._total = time.monotonic(), round(seconds)
        bar: Any = None
        if sys.stderr.isatty() and find_spec("tqdm") is not None:
            from tqdm import tqdm

            look = "{desc} |{bar}| {n_fmt}/{total_fmt} s"
            bar = tqdm(total=self._total, bar_format=look, ncols=100, leave=False, file=sys.stderr)
        super().__init__(bar)

    @contextmanager
    def of(self, what: str, found: Path) -> Iterator[None]:
        """While a launch measures ``what`` and says in a file what it has ``found``."""
        if self._bar is None:
            self.write(f"# {what}")
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=[what, found, over], daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _follow(self, what: str, found: Path, over: threading.Event) -> None:
        while not over.wait(_LOOKS):
            last = (_lines(found) or [{}])[-1]
            at = f" ({size_text(last['size'])} is done)" if "size" in last else ""
            self._bar.set_description_str(what + at, refresh=False)
            self._bar.n = min(round(time.monotonic() - self._began), self._total)
            self._bar.refresh()


Launching = Callable[[int, Order, str, Progress], Found]


def launch(ranks: int, order: Order, what: str, progress: Progress) -> Found:
    """Start the ranks, and wait for them. The first Ctrl-C ends them after the cell under way, the second one at once.

    Raises LaunchError if they fail."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="mpicoll-") as folder:
        stop, given, found = (Path(folder, name) for name in ("stop", "order", "found"))
        given.write_text(order.text())
        os.environ[STOP] = str(stop)
        code = 0
        try:
            with progress.of(what, found):
                code = launcher.attended(
                    ["-m", "mpicoll.bench.tune.rank", str(given), str(found)], ranks, partial(ask, stop)
                )
        except KeyboardInterrupt:
            if not stop.exists():
                raise
            # The second one, and the ranks have ended. What they had measured by then is in the file.
        finally:
            del os.environ[STOP]
        said, over = _lines(found), stop.exists()
    if code and not over:
        raise LaunchError(f"tune: {ranks} ranks that measured have ended with exit code {code}")
    return Found(said, time.monotonic() - began, over)


def _lines(found: Path) -> list[dict[str, Any]]:
    """The whole lines of the file."""
    try:
        text = found.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
