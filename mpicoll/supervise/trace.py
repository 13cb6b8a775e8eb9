"""The trace of a job: one file of all calls of all ranks, which Perfetto and chrome://tracing show (MPICOLL_TRACE)."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from inspect import getattr_static
from pathlib import Path
from time import monotonic
from typing import Any

from mpicoll.machine.system import write_whole
from mpicoll.supervise import messages
from mpicoll.supervise.messages import Clock, EventList, EventsFrom
from mpicoll.supervise.record import DONE, ENDED_MIDWAY, UNDER_WAY, Record, Recorder
from mpicoll.supervise.sites import Site, place_of

MOST = 100_000
"""The last calls of a process that are in a trace."""
_PIECE = 1 << 22
"""Characters after which what is told goes on in another message."""

Event = tuple[str, int, Record, Site, int, float]
"""Communicator, number, call, site, thread and begin."""


class Events:
    """The calls of a process, on all its communicators."""

    def __init__(self) -> None:
        self._ended: deque[tuple[Event, float, str]] = deque(maxlen=MOST)
        """Calls, how long they took, and whether they were done or ended midway."""
        self._under_way: dict[TracedRecorder, Event] = {}
        self._threads: dict[int, str] = {}
        self._to_tell: list[tuple[Event, float, str]] = []

    def begin(self, recorder: TracedRecorder, event: Event) -> None:
        """A call begins."""
        thread = event[4]
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        self._under_way[recorder] = event

    def end(self, recorder: TracedRecorder, state: str | None) -> None:
        """Note that the call ends, and how. None if it was never made."""
        event = self._under_way.pop(recorder, None)
        if event is not None and state is not None:
            self._ended.append((event, monotonic() - event[5], state))

    def told(self, first: int) -> EventList:
        """All of them as plain values, from number ``first`` on. What does not fit into one message is told when
        somebody asks for ``rest``."""
        if first == 0:
            now, under_way = monotonic(), [*self._under_way.values()]
            self._to_tell = [*self._ended]
            self._to_tell += [(event, now - event[5], UNDER_WAY) for event in under_way]
        told: list[messages.Event] = []
        size = 0
        for event, seconds, state in self._to_tell[first:]:
            told.append(_plain(event, seconds, state))
            size += len(str(told[-1]))
            if size >= _PIECE:
                break
        last = first + len(told)
        main = threading.main_thread().ident or 0
        rest = last if last < len(self._to_tell) else None
        return EventList(socket.gethostname(), main, [*self._threads.items()], told, rest)


def _plain(event: Event, seconds: float, state: str) -> messages.Event:
    name, number, call, site, thread, begun = event
    what = call.operation, call.description, call.nbytes, call.route
    return name, number, *what, place_of(site), thread, begun, seconds, state


_UNDER_WAY: Any = getattr_static(Recorder, "under_way")
"""Where the ring itself has it."""


class TracedRecorder(Recorder):
    """Keeps its calls in ``events``, too, once it is told in which."""

    __slots__ = ("_events", "_name")

    def __init__(self) -> None:
        self._events: Events | None = None
        self._name = ""
        super().__init__()

    def keep_in(self, events: Events, name: str) -> None:
        """The communicator has this name."""
        self._events, self._name = events, name

    def begin(self, record: Record) -> None:
        super().begin(record)
        self._note()

    def was_handed_in(self, site: Site, when: float | None) -> None:
        super().was_handed_in(site, when)
        self._note()

    def _note(self) -> None:
        if self._events is not None:
            at = self._next - 1
            site, thread = (self._codes[at], self._places[at]), threading.get_ident()
            event = self._name, self._first + at, self._records[at], site, thread, monotonic()
            self._events.begin(self, event)

    @property
    def under_way(self) -> bool:
        """Whether the last call has begun and not ended."""
        found: bool = _UNDER_WAY.__get__(self)
        return found

    @under_way.setter
    def under_way(self, value: bool) -> None:
        ended = self.under_way and not value
        _UNDER_WAY.__set__(self, value)
        if ended and self._events is not None:
            self._events.end(self, DONE)

    def retract(self) -> None:
        if self._events is not None:
            self._events.end(self, None)
        super().retract()

    def close(self, goes_on: bool = False) -> None:
        if self._events is not None and not goes_on:
            self._events.end(self, ENDED_MIDWAY)
        super().close(goes_on)


_LOOKS = 8
"""How often a clock is asked. The fastest answer counts."""
_SECONDS_TO_TELL = 60.0

Reading = tuple[float, float]
"""A time by the clock of this process, and how much later it was then by a rank's clock."""

AskRanks = Callable[..., Awaitable[dict[int, Any]]]
"""Puts a question to ranks, and returns the answers of those that answer in time: ``Processes.ask``."""


class Trace:
    """Asks all ranks for their events, in the process of the job's coordinator, and writes them to ``file``."""

    def __init__(self, file: Path, ask: AskRanks) -> None:
        self._file, self._ask = file, ask
        self._clocks: dict[int, list[Reading]] = {}
        self._written = 0, ""
        """How many calls the file has, and what was said of it."""

    async def read_clock(self, rank: int) -> None:
        """Compare a rank's clock with that of this process."""
        readings = []
        for _ in range(_LOOKS):
            before = monotonic()
            answers = await self._ask([rank], Clock())
            if rank not in answers:
                return
            readings.append((before, answers[rank], monotonic()))
        self._clocks.setdefault(rank, []).append(difference(readings))

    async def write(self, ranks: Iterable[int], seconds: float = _SECONDS_TO_TELL) -> str:
        """Write what all these ranks tell. Returns a line that says where it is, or why it could not be written."""
        import asyncio  # only here: recorders are made before the watchers begin, and they load it

        ranks = [*ranks]
        await asyncio.gather(*map(self.read_clock, ranks))
        all_told = await asyncio.gather(*(self._told(rank, seconds) for rank in ranks))
        told = {rank: of for rank, of in zip(ranks, all_told, strict=True) if of is not None}
        calls = sum(len(of.events) for of in told.values())
        if calls < self._written[0]:  # at the end, ranks that were asked again have left
            return self._written[1]
        try:
            write_whole(self._file, json.dumps(chrome(told, self._clocks)))
        except OSError as e:
            return f"mpicoll: the trace could not be written to {self._file}: {e}"
        all_ranks = f"{len(ranks)} ranks" if len(told) == len(ranks) else f"{len(told)} of {len(ranks)} ranks"
        self._written = calls, f"mpicoll: the trace of {all_ranks} is in {self._file}"
        return self._written[1]

    async def _told(self, rank: int, seconds: float) -> EventList | None:
        """What a rank tells, in one or more messages. None if it does not answer."""
        told: EventList | None = (await self._ask([rank], EventsFrom(0), seconds)).get(rank)
        while told is not None and told.rest is not None:
            more = (await self._ask([rank], EventsFrom(told.rest), seconds)).get(rank)
            told = more and more.changed(events=told.events + more.events)
        return told


def difference(readings: list[tuple[float, float, float]]) -> Reading:
    """How much later it is by another clock, from readings of it between two of this one.

    Where no difference at all explains the fastest reading, too, it is the same clock: that of one node.
    """
    before, other, after = min(readings, key=lambda reading: reading[2] - reading[0])
    middle = (before + after) / 2
    return middle, 0.0 if before <= other <= after else other - middle


def by_this_clock(time: float, readings: list[Reading]) -> float:
    """A time of another clock by this one. Clocks drift apart evenly between the first reading and the last."""
    if not readings:
        return time
    (first, ahead), (last, ahead_then) = readings[0], readings[-1]
    if last == first:
        return time - ahead
    passed = (time - ahead - first) / (last - first)
    return time - (ahead + (ahead_then - ahead) * passed)


def chrome(told: dict[int, EventList], clocks: dict[int, list[Reading]]) -> dict[str, Any]:
    """The trace in the format of Chrome's: a process for each rank, a row for each of its threads."""
    rows: list[dict[str, Any]] = []
    for rank, of in sorted(told.items()):
        threads = {ident: number for number, (ident, _) in enumerate(of.threads, 1)} | {of.main: 0}
        rows.append(_named("process_name", rank, 0, f"rank {rank} on {of.host}"))
        rows.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        rows += [_named("thread_name", rank, threads[ident], _row(name)) for ident, name in of.threads]
        for name, number, operation, description, nbytes, route, site, thread, begun, seconds, state in of.events:
            start = by_this_clock(begun, clocks.get(rank, []))
            about = {"communicator": name, "number": number, "bytes": nbytes, "algorithm": route, "called at": site}
            call = {"ph": "X", "name": description, "cat": operation, "pid": rank, "tid": threads[thread]}
            rows.append(call | {"ts": start, "dur": seconds * 1e6, "args": about | {"state": state}})
    first = min((row["ts"] for row in rows if "ts" in row), default=0.0)
    for row in rows:
        if "ts" in row:
            row["ts"] = (row["ts"] - first) * 1e6
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _row(thread: str) -> str:
    """What a thread's row is called, from the name of the thread."""
    return {"MainThread": "program", "mpicoll": "asynchronous calls"}.get(thread, thread)
