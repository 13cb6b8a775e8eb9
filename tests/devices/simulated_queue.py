"""The stream of a simulated device: a thread that works late, at a stated speed, and fails on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Dtype, Reduction
from mpicoll.devices.device import Event, Stream
from mpicoll.errors import DeviceFailure

if TYPE_CHECKING:
    from tests.devices.simulated import Simulated

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a simulated device's work takes: seconds to begin, bytes a second, and up to ``delay`` seconds more, which
    are drawn anew each time."""

    latency: float = 0.0
    rate: float = float("inf")
    delay: float = 0.0


class Place(NamedTuple):
    """A view of the simulated device: the bytes, and the addresses by which the program knows them. Memory of the host
    has no such addresses."""

    bytes: Array
    low: int = 0
    high: int = 0


class SimulatedEvent(Event):
    """A place in a stream. ``failure`` is what went wrong before it."""

    def __init__(self) -> None:
        self._passed = threading.Event()
        self.failure: Exception | None = None

    def passed(self, failure: Exception | None) -> None:
        """The stream has come here."""
        self.failure = failure
        self._passed.set()

    def wait(self) -> None:
        self._passed.wait()
        self._raise()

    def is_past(self) -> bool:
        if not self._passed.is_set():
            return False
        self._raise()
        return True

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure


class SimulatedStream(Stream):
    """A thread that does its work in order. After a failure it does nothing more, as a CUDA context does."""

    def __init__(self, device: Simulated, seed: int) -> None:
        self._device, self._random = device, Random(seed)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._pending: dict[int, tuple[Place, ...]] = {}
        self._next = 0
        threading.Thread(target=_work_off, args=(self._work,), name=f"stream of {device.name}", daemon=True).start()

    def __del__(self) -> None:
        self._work.put(None)

    def copy(self, target: Place, source: Place) -> None:
        self.hand_in("copy", partial(np.copyto, target.bytes, source.bytes), target.bytes.nbytes, target, source)

    def combine(
        self, rows: Sequence[Place], out: Place, reduction: Reduction, factors: Sequence[Any] | None = None
    ) -> None:
        work = partial(kernels.reduce_rows, [row.bytes for row in rows], out.bytes, reduction, factors)
        self.hand_in("kernel", work, out.bytes.nbytes * (len(rows) + 1), *rows, out)

    def divide(self, values: Place, divisor: int, dtype: Dtype) -> None:
        work = partial(kernels.divide, values.bytes, divisor, dtype)
        self.hand_in("kernel", work, 2 * values.bytes.nbytes, values)

    def hand_in(self, what: str, work: Callable[[], object], nbytes: int, *places: Place) -> None:
        """Do this work in the stream's turn. It touches these places, and fails on demand as a ``what``."""
        self._next += 1
        self._pending[self._next] = places
        self._work.put(partial(self._do, self._next, what, work, nbytes))

    def record(self) -> SimulatedEvent:
        event = SimulatedEvent()
        self._work.put(lambda: event.passed(self._failure))
        return event

    def wait_for(self, event: Event) -> None:
        self._work.put(partial(self._wait, event))

    def after(self, free: Callable[[], None]) -> None:
        """Call ``free`` when the stream has come here, whatever failed before."""
        self._work.put(free)

    def synchronize(self) -> None:
        """Wait for all that was handed in."""
        self.record().wait()

    def touches(self, low: int, high: int) -> bool:
        """Whether work is pending on one of these addresses."""
        return any(p.low < high and low < p.high for places in list(self._pending.values()) for p in places)

    def _wait(self, event: Event) -> None:
        try:
            event.wait()
        except DeviceFailure as e:
            self._failure = self._failure or e

    def _do(self, number: int, what: str, work: Callable[[], object], nbytes: int) -> None:
        costs = self._device.costs
        begun = time.monotonic()
        if costs.delay and self._random.random() < 0.25:
            time.sleep(self._random.random() * costs.delay)
        try:
            if self._failure is None:
                for place in self._pending[number]:
                    self._device.check(place)
                if self._device.fails(what):
                    raise DeviceFailure(f"{self._device.name}: a {what} of {nbytes} bytes failed")
                work()
        except DeviceFailure as e:
            self._failure = e
        left = begun + costs.latency + nbytes / costs.rate - time.monotonic()
        if left > 0:
            time.sleep(left)
        del self._pending[number]


def _work_off(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (each := work.get()) is not None:
        each()
        del each
