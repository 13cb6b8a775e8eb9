"""Which rank's process has ended first, as ``mpicoll run`` sees it.

MPICH's launcher names a process when it ends a job, and often one that it has ended itself. So the processes are looked
at beside it. The kernel tells at once when one ends.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from mpicoll.launch.beside import beside

__all__ = ["Gone"]

_SOON, _LATE = 0.1, 10.0
"""Seconds between the first and between the last looks for ranks that have come: those of other nodes never do."""


class Gone:
    """The processes of a job's ranks, from ``watch`` to ``first``.

    ``process_of`` gives a rank's process, 0 as long as it has not come. ``is_over`` says whether a rank's program has
    come to its end."""

    def __init__(self, nprocs: int, process_of: Callable[[int], int], is_over: Callable[[int], bool]) -> None:
        self._missing, self._process_of, self._is_over = set(range(nprocs)), process_of, is_over
        self._first: int | None = None
        self._wake = os.eventfd(0)
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begin. No process is forked by this one after that."""
        self._thread = beside(self._watch)

    def first(self) -> int | None:
        """The rank that ended before all others, and before its program did. It looks no more."""
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        os.close(self._wake)
        return self._first

    def _watch(self) -> None:
        # Of several that have ended, epoll names them in the order in which they did.
        poll, ranks = select.epoll(), dict[int, int]()
        poll.register(self._wake, select.EPOLLIN)
        ended: list[int] = []
        pause = _SOON
        while self._first is None and self._wake not in ended:
            for rank in sorted(self._missing):
                if process := self._process_of(rank):
                    self._missing.remove(rank)
                    try:
                        file = os.pidfd_open(process)
                    except OSError:
                        continue  # it has ended, or the system has no such files
                    ranks[file] = rank
                    poll.register(file, select.EPOLLIN)
            ended = [file for file, _ in poll.poll(pause if self._missing else None)]
            pause = min(1.5 * pause, _LATE)
            files = [file for file in ended if file != self._wake]
            for file in files:
                poll.unregister(file)
            self._first = next((ranks[file] for file in files if not self._is_over(ranks[file])), None)
        for file in (*ranks, poll.fileno()):
            os.close(file)
