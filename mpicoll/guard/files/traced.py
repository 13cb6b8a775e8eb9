"""A recorder that also keeps when each call has ended, and on which thread: for MPICOLL_TRACE."""

from __future__ import annotations

import socket
import threading
from collections import deque
from inspect import getattr_static
from time import monotonic
from typing import Any

from mpicoll.calls.record import Record
from mpicoll.guard.recorder import DONE, ENDED_MIDWAY, UNDER_WAY, Recorder
from mpicoll.guard.sites import Site, place_of
from mpicoll.guard.watch import protocol
from mpicoll.guard.watch.protocol import EventList

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
        told: list[protocol.Event] = []
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


def _plain(event: Event, seconds: float, state: str) -> protocol.Event:
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
