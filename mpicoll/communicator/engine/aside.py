"""Collectives that another thread carries out while the program goes on.

They serve what MPI has no non-blocking call for: dtypes and operations that it lacks, named algorithms, ranks that are
threads. They go through a communicator of their own, so that the program may make calls meanwhile.
"""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, TypeVar

from mpicoll.communicator.engine.base import Base
from mpicoll.fabrics.fabric import Transfer
from mpicoll.fabrics.thread_job import Helper
from mpicoll.fabrics.thread_job import here as here_in_job
from mpicoll.launch import lifecycle
from mpicoll.supervise import sites

Engine = TypeVar("Engine", bound=Base)


class _Task(Generic[Engine]):
    """A collective that was handed in."""

    def __init__(self, run: Callable[[Engine], None], site: sites.Site) -> None:
        self.run, self.site, self.since = run, site, monotonic()
        self.done = threading.Event()
        self.error: Exception | None = None


class Aside(Generic[Engine]):
    """A thread, with an engine that it makes for itself. It takes collectives in the order of the program."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._tasks: queue.SimpleQueue[_Task[Engine] | None] = queue.SimpleQueue()
        self._last: _Task[Engine] | None = None
        _all.add(self)
        self._thread = Helper(self._serve)
        self._thread.start()

    def hand_in(self, run: Callable[[Engine], None], site: sites.Site) -> _Task[Engine]:
        """Let the thread run this, after all that was handed in before."""
        task = self._last = _Task(run, site)
        self._thread.hand_in()
        self._tasks.put(task)
        return task

    def complete(self) -> None:
        """Return when all that was handed in is complete."""
        if self._last is not None:
            self._last.done.wait()

    def finish(self) -> None:
        """Complete what was handed in, and free the engine. Collective."""
        self._tasks.put(None)
        self._thread.join()

    def _serve(self, thread: Helper) -> None:
        engine: Engine | None = None
        while (task := self._tasks.get()) is not None:
            sites.here.site, sites.here.handed_in = task.site, task.since
            try:
                engine = engine or self._make()
                task.run(engine)
            except Exception as e:  # whoever waits gets it
                task.error = e
            sites.here.site = sites.here.handed_in = None
            task.done.set()
            thread.complete()
            del task  # and its arrays
        if engine is not None:
            engine.free()


class Handed(Transfer, Generic[Engine]):
    """One collective for the thread. ``run`` carries it out with the thread's engine."""

    def __init__(self, aside: Aside[Engine], run: Callable[[Engine], None]) -> None:
        self._aside, self._run = aside, run

    def start(self) -> _Task[Engine]:
        site, _ = sites.site_of(sys._getframe(1))
        return self._aside.hand_in(self._run, site)

    def wait(self, begun: _Task[Engine]) -> None:
        if (seat := here_in_job.seat) is None:
            begun.done.wait()
        else:
            with seat.job.changed:
                seat.job.wait_until(begun.done.is_set, f"rank {seat.rank} waits for a call that it has begun")
        if begun.error is not None:
            raise begun.error

    def test(self, begun: _Task[Engine]) -> bool:
        if begun.done.is_set():
            self.wait(begun)
        return begun.done.is_set()


_all: weakref.WeakSet[Aside[Any]] = weakref.WeakSet()


def _complete_all() -> None:
    """At the end of the program or of MPI: no thread may be in a call of MPI's when that is finalised."""
    for aside in [*_all]:
        aside.complete()


lifecycle.add(lifecycle.Hook.COMPLETE_COLLECTIVES, _complete_all)
lifecycle.add(lifecycle.Hook.FORGET_THREADS, _all.clear)
