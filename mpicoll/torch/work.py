"""Handles of operations under way: what ``async_op=True``, ``isend`` and ``irecv`` return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta

import torch

from mpicoll.arrays.buffers import as_buffer
from mpicoll.communicator.engine.progress import Submitted, failure_of
from mpicoll.communicator.engine.requests import Request
from mpicoll.devices.cuda import device_named
from mpicoll.devices.device import Device, Event, Stream
from mpicoll.errors import ArgumentError, DeviceFailure, StateError, TimeoutError
from mpicoll.launch.lifecycle import is_forked
from mpicoll.torch.private import profiler, uncompiled


class Work:
    """An operation under way, with the methods of torch.distributed.Work.

    The program must not touch the operation's tensors before it is complete."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation is complete, and return True.

        The results on a device may still be on their way then: the current stream goes on after them. Raises what the
        operation raised. Raises TimeoutError when ``timeout`` has passed: the operation goes on, and the program may
        wait for it again."""
        raise NotImplementedError

    def is_completed(self) -> bool:
        """Whether the operation is complete. This does not wait."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether the operation is complete and raised nothing."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What the operation raised; None if it raised nothing so far."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait, as :meth:`wait` does."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that a collective writes.

        Raises StateError for a message: nothing would complete its future while the program does not ask."""
        raise StateError("get_future: only a collective has a future: wait() for this Work, or ask is_completed()")


def seconds_of(timeout: timedelta | None) -> float | None:
    """The timeout of a ``wait`` in seconds, at most as many as Python can wait for. None is no limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        raise ArgumentError("wait", "timeout", "a datetime.timedelta", repr(timeout))
    return min(timeout.total_seconds(), threading.TIMEOUT_MAX)


# -- the place of a collective in the queues of devices ----------------------------------------------------------------

# A collective of the group's queue works in another thread than the one that called it. There the device's current
# queue is not the caller's. So the group has a queue of its own on each device. It waits for what the caller had queued
# when it called, and whoever waits for the collective lets its own queue wait for its end, and for no more than that.


class GroupStreams:
    """The queues of a group, one for each device that its collectives have worked on."""

    def __init__(self) -> None:
        self._of: dict[str, Stream] = {}

    def guard(self, tensors: Iterable[torch.Tensor]) -> StreamGuard | None:
        """The guard of a collective on these tensors, after what this thread has queued. None if no device has them."""
        elsewhere = [tensor for tensor in tensors if not tensor.is_cpu]
        if not elsewhere:
            return None
        names = dict.fromkeys(as_buffer(tensor, "mpicoll.torch", "tensor").device for tensor in elsewhere)
        for name in names.keys() - self._of.keys():
            self._of[name] = device_named(name).new_stream()
        return StreamGuard([(device_named(name), self._of[name]) for name in names], elsewhere)


class StreamGuard:
    """The place of one collective in the queues of its group."""

    def __init__(self, queues: list[tuple[Device, Stream]], tensors: Iterable[torch.Tensor]) -> None:
        self._queues = queues
        self._begun = [device.current().record() for device, _ in queues]
        self._ended: list[Event] = []
        storages = {tensor.untyped_storage().device for tensor in tensors}
        self.known_to_torch = sorted(str(device) for device in storages if device.type != "cpu")
        """The devices whose streams torch's futures know. A simulated device is none of them."""

    def enter(self, stack: ExitStack) -> None:
        """Make the group's queues current here until the stack is closed."""
        for (device, queue), begun in zip(self._queues, self._begun, strict=True):
            queue.wait_for(begun)
            stack.enter_context(device.using(queue))

    def take(self, run: Callable[[], None]) -> None:
        """Hand in the collective's work, by ``run``."""
        try:
            run()
        finally:
            self._ended = [queue.record() for _, queue in self._queues]

    def follow(self) -> None:
        """Let this thread's current queues go on after the collective."""
        for (device, _), ended in zip(self._queues, self._ended, strict=False):  # none has ended if it was given up
            device.current().wait_for(ended)

    def is_past(self) -> bool:
        """Whether the devices have come to its end."""
        return all(ended.is_past() for ended in self._ended)

    def wait(self) -> None:
        """Let the host wait until they have. Raises DeviceFailure if their work failed."""
        for ended in self._ended:
            ended.wait()


# -- collectives ------------------------------------------------------------------------------------------------------

_completing = threading.Lock()  # held for a moment where a future may come, or be completed, in two threads at once


@uncompiled
class Complete(Work):
    """A collective that was complete before its call returned. It has written ``tensors``."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is not None:
            seconds_of(timeout)  # it may be wrong
        return True

    def is_completed(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that the collective wrote."""
        return self.tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self.tensors)
        return future


@uncompiled
class CollectiveWork(Submitted, Work):
    """A collective of a group's thread. ``run`` carries it out, and writes ``tensors``.

    ``guard`` is its place in the queues of devices, None if all its tensors are the host's."""

    _completes: int | None = None  # the thread that completes the future. In its callbacks the collective is over
    _completed = False
    _then: Callable[[], None] | None = None
    _future: torch.futures.Future[list[torch.Tensor]] | None = None
    """Made when somebody asks for it: that takes as long as a short collective."""

    def __init__(self, run: Callable[[], None], tensors: list[torch.Tensor], guard: StreamGuard | None = None) -> None:
        super().__init__(run)
        self.tensors, self.guard, self.on_devices = tensors, guard, guard is not None
        self._late = guard is not None and not guard.known_to_torch
        """Whether the future is complete only at the end of the device's work, because it knows no streams of it."""
        if guard is not None:
            self._future = torch.futures.Future(devices=[*guard.known_to_torch])

    def execute(self) -> None:
        if (guard := self.guard) is None:
            super().execute()
            return

        def run_there() -> None:
            guard.enter(stack)
            guard.take(self._run)

        with ExitStack() as stack:  # the future's callbacks, too, work on the group's queues
            self.settle(failure_of(run_there))

    def let_go(self) -> None:
        """Wait until devices have come to the end of the collective, and drop the tensors that it read."""
        if self.guard is not None:
            try:
                self.guard.wait()
            except DeviceFailure as e:
                self._fail_late(e)
            if self._late:
                self._complete()
        super().let_go()

    def _fail_late(self, failure: DeviceFailure) -> None:
        """Note that a device has failed, after the collective itself was over."""
        if self.error is None:
            self.error = failure

    def ended(self) -> None:
        if not self._late:
            self._complete()

    def _complete(self, then: Callable[[], None] | None = None) -> None:
        """Complete the future. Its callbacks run here. They may wait for this Work, and start collectives."""
        with _completing:
            first, future = not self._completed, self._future
            self._completed, self._then, then = True, None, then or self._then  # it holds the handle, which holds this
        outer, self._completes = self._completes, threading.get_ident()
        try:
            if then is not None:
                then()
            if first and future is not None:
                self._fill(future)
        finally:
            self._completes = outer

    def _fill(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self.error is None:
            future.set_result(self.tensors)
        else:
            future.set_exception(self.error)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta | None = None) -> bool:
        if profiler._is_profiler_enabled and not self._completes_here():
            with profiler.record_function("mpicoll:wait"):
                self.join(timeout)
        else:
            self.join(timeout)
        return True

    def join(self, timeout: timedelta | None = None) -> list[torch.Tensor]:
        """Wait as :meth:`wait` does, and return the tensors that the collective wrote. Profilers do not see it."""
        seconds = seconds_of(timeout)
        if not (self.over or self.complete(seconds)):
            raise TimeoutError(f"wait: the collective was not complete after {timeout}")
        if self.error is not None:
            self.heard |= not self._completes_here()  # there C++ asks, and not yet the program
            raise self.error
        if self.guard is not None:
            self.guard.follow()
        return self.tensors

    def _completes_here(self) -> bool:
        return self._completes == threading.get_ident()

    def is_over(self) -> bool:
        return self.over or self._completes_here() or super().is_over()

    def is_completed(self) -> bool:
        if not self.is_over():
            return False
        if self.guard is None or self.error is not None:
            return True
        try:
            return self.guard.is_past()
        except DeviceFailure as e:
            self._fail_late(e)
            return True

    def exception(self) -> BaseException | None:
        self.heard |= self.error is not None
        return self.error

    def result(self) -> list[torch.Tensor]:
        """Wait, and return the tensors that the collective wrote."""
        self.wait()
        return self.tensors

    def when_complete(self, do: Callable[[], None]) -> None:
        """Have ``do`` called at the end, before the future's callbacks."""
        with _completing:
            if not self._completed:
                self._then = do
                return
        self._complete(do)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that the collective writes. The future raises what the collective raised."""
        if is_forked() and self.is_over() and self.error is not None:
            raise self.error
        self.heard = True  # the future raises it
        with _completing:
            future = self._future
            if future is None:
                future = self._future = torch.futures.Future()
                if self._completed:
                    self._fill(future)
        if self.thread is not None and not self.over:
            self.thread.hurry()  # nobody may come to wait for it
        return future


@uncompiled
class MessageWork(Request, Work):
    """A message under way, with torch's methods."""

    ranks: Sequence[int] | None = None
    """The global ranks of the message's group. None where torch itself makes them of the group's ranks."""
    _heard = False  # whether the program knows what has failed

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        seconds = None if timeout is None else seconds_of(timeout)
        if seconds is None:
            Request.wait(self)
        elif not self.ends_within(seconds):
            raise TimeoutError(f"wait: the message was not complete after {seconds:g} s")
        return True

    def is_completed(self) -> bool:
        return self.exception() is not None or self.done

    def exception(self) -> BaseException | None:
        try:
            self.test()
        except Exception as e:  # wait() raises it
            return e
        return None

    def _raise(self) -> None:
        """Each wait raises it. A Request of NumPy's raises it once."""
        if self._failed is not None:
            self._heard = True
            raise self._failed

    def _unheard(self) -> None:
        if not self._heard:
            super()._unheard()

    def source_rank(self) -> int:
        """Wait for a receive, and return the global rank that sent the message."""
        self.wait()
        assert self.source is not None
        return self.source if self.ranks is None else self.ranks[self.source]
