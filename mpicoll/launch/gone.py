"""Which rank's process has ended first, and whether others wait for it in vain, as ``mpicoll run`` sees it.

MPICH's launcher names a process when it ends a job, and often one that it has ended itself. So the processes are looked
at beside it. The kernel tells at once when one ends, and each rank when it comes and when it begins MPI.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from mpicoll.launch.beside import beside
from mpicoll.launch.last_calls import BEGINS, BEGUN, Board

_SECONDS_TO_BEGIN = 1.0
"""A rank that is still within MPI_Init so long after another one has ended without it waits for that one."""


class Gone:
    """The processes of the ranks of a job, from ``watch`` to ``first``. ``waited_for`` is called with a rank that has
    ended without MPI, as soon as another one waits for it in MPI_Init, where it would do so for ever."""

    def __init__(self, board: Board, waited_for: Callable[[int], object]) -> None:
        self._board, self._waited_for = board, waited_for
        self._missing = set(range(board.nprocs))
        self._ranks: dict[int, int] = {}
        """Those that have come, by the files of their processes."""
        self._ended: dict[int, None] = {}
        """In the order in which they did."""
        self._first: list[int] = []
        self._wake = os.eventfd(0)
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begin. No process is forked by this one after that."""
        self._thread = beside(self._watch)

    def first(self) -> list[int]:
        """The rank that ended before all others, and before its program did. They are several if one of them was the
        first and it is not known which. It looks no more."""
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        os.close(self._wake)
        return self._first

    def _watch(self) -> None:
        # Of several that have ended, epoll names them in the order in which they did.
        poll, waits = select.epoll(), False
        for file in (self._wake, self._board.news):
            poll.register(file, select.EPOLLIN)
        files: list[int] = []
        while self._wake not in files:
            files = self._next(poll, _SECONDS_TO_BEGIN if waits else None)
            if self._board.news in files:
                os.read(self._board.news, 4096)
            ended, unseen = self._look_at_new(poll, files)
            self._ended |= dict.fromkeys(ended)
            others_wait = self._is_within_init()
            if not self._first:
                early = [rank for rank in ended if not self._board.is_over(rank) or (others_wait and self._lacks(rank))]
                self._first = sorted(early) if unseen.intersection(early) else early[:1]
            waited_for = [rank for rank in self._ended if self._lacks(rank)] if others_wait else []
            if waits and waited_for and not files:
                self._waited_for(waited_for[0])
                break
            waits = bool(waited_for)
        for file in (*self._ranks, poll.fileno()):
            os.close(file)

    def _next(self, poll: select.epoll, seconds: float | None) -> list[int]:
        return [file for file, _ in poll.poll(seconds)]

    def _look_at_new(self, poll: select.epoll, files: list[int]) -> tuple[list[int], set[int]]:
        """The ranks whose processes have ended, and those of them that had ended before they were looked at."""
        new = [rank for rank in sorted(self._missing) if self._board.process_of(rank)]
        self._missing.difference_update(new)
        unseen, came = set[int](), set[int]()
        for rank in new:
            try:
                file = os.pidfd_open(self._board.process_of(rank))
            except ProcessLookupError:
                unseen.add(rank)
            except OSError:  # the system has no such files
                pass
            else:
                self._ranks[file] = rank
                came.add(rank)
                poll.register(file, select.EPOLLIN)
        if new:
            files = [*files, *(file for file in self._next(poll, 0) if file not in files)]
        ended = [file for file in files if file in self._ranks]
        for file in ended:
            poll.unregister(file)
        ranks = [self._ranks[file] for file in ended]
        unseen |= came.intersection(ranks)
        return [*ranks, *(rank for rank in sorted(unseen) if rank not in ranks)], unseen

    def _lacks(self, rank: int) -> bool:
        """Whether MPI has not begun in this rank."""
        return self._board.mpi_of(rank) != BEGUN

    def _is_within_init(self) -> bool:
        """Whether a rank that lives is within MPI_Init."""
        return any(self._board.mpi_of(rank) == BEGINS for rank in self._ranks.values() if rank not in self._ended)
