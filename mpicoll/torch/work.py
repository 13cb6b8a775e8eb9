"""Handles of operations under way, and the thread that carries out a group's asynchronous collectives."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from time import monotonic, sleep

import torch

from mpicoll.errors import ArgumentError, StateError, TimeoutError
from mpicoll.fabrics.threads import Seat, here, work_for
from mpicoll.messages import Request

__all__ = ["CollectiveWork", "MessageWork", "Work", "Worker"]


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
        self._future.add_done_callback(lambda _: done.set())
        self._exception: Exception | None = None
        self._future_taken = False
        self.failed_unseen = False
        """Whether it raised and nobody has asked yet."""

    def carry_out(self) -> None:
        """Run it, here and now."""
        try:
            self._run()
        except Exception as e:  # raised again where the program waits for it
            self._exception, self.failed_unseen = e, not self._future_taken
        del self._run  # and with it the tensors that it read
        # The future's callbacks run here: they may wait for this, and start collectives of their own.
        if self._exception is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._exception)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self.done.wait(_seconds(timeout)):
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
        self._last_done = threading.Event()
        self._last_done.set()
        self._failed: list[CollectiveWork] = []

    @property
    def busy(self) -> bool:
        """Whether anything submitted is not complete yet."""
        return not self._last_done.is_set()

    def submit(self, run: Callable[[], None], result: list[torch.Tensor]) -> CollectiveWork:
        """Queue ``run``, which writes ``result``."""
        if self._thread is None:
            # A daemon: the interpreter must not wait at its end for a thread that waits for work.
            self._thread = threading.Thread(target=self._serve, args=[here.seat], name="mpicoll", daemon=True)
            self._thread.start()
        work = CollectiveWork(run, result)
        self._last_done = work.done  # and not the work, whose tensors the program may have let go
        self._queue.put(work)
        if threading.current_thread() is self._thread:
            self._catch_up()  # a callback may wait for it, and there is nobody else to carry it out
        return work

    def _catch_up(self) -> None:
        """Carry out what is queued, on the worker's own thread."""
        while not self._queue.empty():
            work = self._queue.get()
            if work is None:
                self._queue.put(None)
                return
            self._serve_one(work)

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

    def _serve_one(self, work: CollectiveWork) -> None:
        work.carry_out()
        if work.failed_unseen:
            self._failed.append(work)

    def _serve(self, rank: Seat | None) -> None:
        work_for(rank)
        while (work := self._queue.get()) is not None:
            self._serve_one(work)
            del work  # and with it the tensors, before the next one comes
