"""Handles of operations under way, and the thread that carries out a group's asynchronous collectives."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep

import torch
from torch.autograd import profiler

from mpicoll.communicator.messages import Request
from mpicoll.errors import ArgumentError, StateError, TimeoutError
from mpicoll.fabrics.job import Seat, here, work_for

__all__ = ["CollectiveWork", "MessageWork", "Work", "Worker"]


_SECONDS_TO_END = 1.0
"""That an aborted group's thread has, when the program ends, for what it is in."""


class Work(ABC):
    """An operation under way, as torch.distributed.Work. Its tensors must not be touched before it is complete."""

    @abstractmethod
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True when it is complete; raise what it raised, or mpicoll's TimeoutError after ``timeout``."""

    @abstractmethod
    def is_completed(self) -> bool:
        """Whether it is complete, without waiting."""

    def is_success(self) -> bool:
        """Whether it is complete and raised nothing."""
        return self.is_completed() and self.exception() is None

    @abstractmethod
    def exception(self) -> BaseException | None:
        """What it raised, if it has."""

    def synchronize(self) -> None:
        """The same as ``wait``: results are in memory, on no stream."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A collective's future. Others have none: nothing completes them while nobody asks."""
        raise StateError("get_future: only a collective has a future: wait() for this Work, or ask is_completed()")


def _seconds(timeout: timedelta | None) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        raise ArgumentError("wait", "timeout", "a datetime.timedelta", repr(timeout))
    return timeout.total_seconds()


class CollectiveWork(Work):
    """A collective in the queue of a group's worker."""

    def __init__(self, run: Callable[[], None], result: list[torch.Tensor]) -> None:
        self._run, self._result = run, result
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self.done = done = threading.Event()
        """Set when it is complete, and so is its future."""
        self.served = threading.Event()
        """Set after that, when the future's callbacks have returned too."""
        self._future.add_done_callback(lambda _: done.set())
        self._unsettled = threading.Lock()
        self._exception: Exception | None = None
        self._future_taken = False
        self.failed_unseen = False
        """Whether it raised and nobody has asked yet."""

    def carry_out(self) -> None:
        """Run it, here and now."""
        failure = None
        try:
            self._run()
        except Exception as e:  # raised again where the program waits for it
            failure = e
        del self._run  # and with it the tensors that it read
        self._settle(failure)

    def give_up(self, why: Exception) -> None:
        """Raise this to whoever waits for it, unless it is complete."""
        self._settle(why)

    def _settle(self, failure: Exception | None) -> None:
        """It has ended: the first word of that counts."""
        if not self._unsettled.acquire(blocking=False):
            return
        self._exception = failure
        # The future's callbacks run here: they may wait for this, and start collectives of their own.
        if failure is None:
            self._future.set_result(self._result)
        else:
            self.failed_unseen = not self._future_taken
            self._future.set_exception(failure)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta | None = None) -> bool:
        if profiler._is_profiler_enabled:
            with profiler.record_function("mpicoll:wait"):
                in_time = self.done.wait(_seconds(timeout))
        else:
            in_time = self.done.wait(_seconds(timeout))
        if not in_time:
            raise TimeoutError(f"wait: the collective was not complete after {timeout}")
        if self._exception is not None:
            self.failed_unseen = False
            raise self._exception
        return True

    def is_completed(self) -> bool:
        return self.done.is_set()

    def exception(self) -> BaseException | None:
        self.failed_unseen = False
        return self._exception

    def result(self) -> list[torch.Tensor]:
        """The tensors that it wrote, once it is complete."""
        self.wait()
        return self._result

    def when_complete(self, do: Callable[[Exception | None], None]) -> None:
        """Have ``do`` called with what it raised, if it did, before the callbacks that are added later."""
        self._future.add_done_callback(lambda _: do(self._exception))

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that it writes, which raises what this would."""
        self._future_taken, self.failed_unseen = True, False
        return self._future


class MessageWork(Work):
    """A message under way."""

    def __init__(self, request: Request, to_global: Callable[[int], int]) -> None:
        self._request, self._to_global = request, to_global
        self._exception: Exception | None = None
        self._completed = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = _seconds(timeout)
        if self._exception is not None:
            raise self._exception
        try:
            if seconds is None:
                self._request.wait()
            else:
                self._poll(seconds)
        except TimeoutError:
            raise
        except Exception as e:
            self._exception = e
            raise
        finally:
            self._completed = self._exception is not None or self._request.done
        return True

    def _poll(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        while not self._request.test():
            if monotonic() > deadline:
                raise TimeoutError(f"wait: the message was not complete after {seconds:g} s")
            sleep(1e-4)

    def is_completed(self) -> bool:
        if not self._completed:
            try:
                self._completed = self._request.test()
            except Exception as e:  # raised again by wait
                self._exception, self._completed = e, True
        return self._completed

    def exception(self) -> BaseException | None:
        return self._exception

    def source_rank(self) -> int:
        """The global rank that a received message came from; waits for it."""
        self.wait()
        assert self._request.source is not None
        return self._to_global(self._request.source)


class Worker:
    """A thread that carries out one group's asynchronous collectives, in the order in which they were submitted."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CollectiveWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.idle: Callable[[], bool] = lambda: True
        """Whether all that was submitted is complete, and its callbacks have returned, which may call collectives. It
        asks the last one's event, with nothing between: every call of a collective asks."""
        self._under_way: CollectiveWork | None = None
        self._failed: list[CollectiveWork] = []

    def submit(self, run: Callable[[], None], result: list[torch.Tensor]) -> CollectiveWork:
        """Queue ``run``, which writes ``result``."""
        if self._thread is None:
            # A daemon: the interpreter must not wait at its end for a thread that waits for work.
            self._thread = threading.Thread(target=self._serve, args=[here.seat], name="mpicoll", daemon=True)
            self._thread.start()
        work = CollectiveWork(run, result)
        if self.is_here():  # a callback's own collective comes before all that is queued, on every rank
            self._serve_one(work)
        else:
            self.idle = work.served.is_set  # and not the work, whose tensors the program may have let go
            self._queue.put(work)
        return work

    def finish(self) -> None:
        """Complete what was submitted, and end the thread. Raises the first failure that nobody has waited for."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, []
        for work in failed:
            if work.failed_unseen:
                work.wait()

    def abandon(self, why: Exception) -> None:
        """What is not complete raises ``why``. The thread ends after what it is in, which is left to itself."""
        if (under_way := self._under_way) is not None:
            under_way.give_up(why)
        with suppress(queue.Empty):
            while (work := self._queue.get_nowait()) is not None:
                work.give_up(why)
        self._queue.put(None)

    def ended(self) -> bool:
        """Whether the thread has ended; waits for it a little."""
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_END)
        return self._thread is None or not self._thread.is_alive()

    def is_here(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def _serve_one(self, work: CollectiveWork) -> None:
        outer, self._under_way = self._under_way, work
        work.carry_out()
        self._under_way = outer
        work.served.set()
        if work.failed_unseen:
            self._failed.append(work)

    def _serve(self, rank: Seat | None) -> None:
        work_for(rank)
        while (work := self._queue.get()) is not None:
            self._serve_one(work)
            del work  # and with it the tensors, before the next one comes
