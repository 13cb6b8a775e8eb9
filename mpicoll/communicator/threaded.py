"""Ranks that are threads of this process, for teaching and for tests: no MPI and no launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar, TypeVarTuple

from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import PACKAGE, ArgumentError, MpicollError, StateError, without
from mpicoll.fabrics.thread_job import Job, Seat

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Ranks:
    """Threads that are the ranks of a communicator. :func:`threads` makes them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._job = Job(size)
        self._seats = [Seat(self._job, r) for r in range(size)]

    def run(self, fn: Callable[[Communicator, *Arguments], Result], *args: *Arguments) -> list[Result]:
        """Call ``fn(comm, *args)`` in every rank's thread, and return the list of what each returned, in rank order.

        ``comm`` is a communicator of all ranks, and so is each ``Communicator()`` that such a thread makes.
        ``mpicoll.torch`` has a default group for each rank. If ranks fail, all end, and the exception of the first
        that failed by itself is raised."""
        results: list[Any] = [None] * self.size
        failures: list[tuple[int, BaseException]] = []

        def rank(seat: Seat) -> None:
            self._job.enter(seat)
            try:
                results[seat.rank] = fn(Communicator(), *args)
            except BaseException as e:  # raised again in the calling thread
                tb = e.__traceback__
                # Frames of mpicoll say nothing of an error of its own. Of any other error, only this one does not.
                mine = without(tb, (PACKAGE,)) if isinstance(e, MpicollError) else tb and tb.tb_next
                failures.append((seat.rank, e.with_traceback(mine)))
                self._job.break_off(f"rank {seat.rank} has failed: {type(e).__name__}: {e}")
            finally:
                self._job.leave()

        self._job.begin()
        ranks = [threading.Thread(target=rank, args=(s,), name=f"rank {s.rank}", daemon=True) for s in self._seats]
        for each in ranks:
            each.start()
        try:
            for each in ranks:
                each.join()
        except KeyboardInterrupt:
            self._job.break_off("the program was interrupted")
            raise
        if failures:
            number, failure = failures[0]
            failure.add_note(f"on rank {number} of {self.size}")
            __tracebackhide__ = True  # IPython leaves out this frame
            raise failure
        return results

    def close(self) -> None:
        """End what libraries such as ``mpicoll.torch`` keep for the ranks. They cannot be used afterwards."""
        for seat in self._seats:
            with suppress(StateError) if self._job.broken else nullcontext():
                seat.close()
        self._job.break_off("the ranks have ended")


@contextmanager
def threads(size: int) -> Iterator[Ranks]:
    """Make ranks that are ``size`` threads of this process: ``with mpicoll.threads(4) as ranks: ranks.run(fn)``.

    Needs no MPI and no launcher. Raises ArgumentError unless ``size`` is an int of at least 1."""
    if type(size) is not int or size < 1:
        raise ArgumentError("threads", "size", "a number of ranks, at least 1", repr(size))
    ranks = Ranks(size)
    try:
        yield ranks
    finally:
        ranks.close()
