"""When each call of a process was issued, waited for and complete, noted while a trace or a recording is made."""

from __future__ import annotations

import socket
import sys
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from mpicoll.supervise.messages import Ends, Rows
from mpicoll.supervise.record import DONE, UNDER_WAY, Begun, Pending, Record, Recorder, Waits, nothing
from mpicoll.supervise.sites import Site, backward_pass, place_of, site_now

MOST = 100_000  # the last calls of a process that are kept
_PIECE = 1 << 22  # characters after which what is told goes on in another message
WAIT = "wait"  # the category of the rows that are waits for calls of other rows

Wait = tuple[float, float, int]  # from when to when a thread has waited, and the number of the thread


class TapedCall:
    """A collective or a message. All times are in seconds of ``time.monotonic``."""

    __slots__ = (
        "backward", "begun", "communicator", "complete", "issued", "number", "pending", "returned", "site", "state",
        "thread", "waits", "what",
    )  # fmt: skip

    def __init__(self, communicator: str, number: int | None, what: Record | Pending, site: Site, issued: float):
        self.communicator, self.number, self.what, self.site = communicator, number, what, site
        self.issued = self.begun = issued
        """When the program has made the call, and when a thread of mpicoll's, if it is one's, has begun it."""
        self.thread = threading.get_ident()
        self.returned: float | None = None
        """When the method has returned that has made or begun it. None for a message that may block."""
        self.waits: list[Wait] = []  # when threads have waited for it, besides within that method
        self.complete: float | None = None  # when it was complete, if anybody knows that besides by waiting
        self.backward: int | None = None
        """The number of the backward pass if DistributedDataParallel's reducer has issued it, which waits in C++."""
        self.state = UNDER_WAY
        self.pending: Pending | None = None
        """What somebody may wait for, if the call does not block. It is kept, so that nothing else has its address."""

    def rows(self, now: float, waits_now: Sequence[Wait], rows_of: Mapping[int, int]) -> list[dict[str, Any]]:
        """The row of the call, and of the waits for it, also of those that go on. ``rows_of`` has threads' rows."""
        what, waits = self.what, [(since, until, rows_of[thread]) for since, until, thread in [*self.waits, *waits_now]]
        route, root, ends = (what.route, what.root, Ends()) if isinstance(what, Record) else ("", None, what.ends)
        whole = {"cat": what.operation, "name": what.description, "ph": "X", "tid": rows_of[self.thread]}
        start, end = self.begun, now if self.returned is None else self.returned
        if self.returned is None and waits:
            (start, end, _), *waits = waits
        complete = max([end, *(until for _, until, _ in waits)]) if self.complete is None else self.complete
        about = {
            "communicator": self.communicator,
            "number": self.number,
            "elements": what.elements,
            "bytes": what.nbytes,
            "dtype": what.dtype,
            "root": root,
            **{name: getattr(ends, name) for name in ("sources", "source_tag", "targets", "target_tag")},
            "algorithm": route,
            "backward": self.backward,
            "state": self.state,
            "called at": place_of(self.site),
            "issued": self.issued,
            "complete": complete,
            "waits": [(since, until) for since, until, _ in waits],
        }
        of_waits = whole | {"cat": WAIT, "name": f"wait: {what.description}"}
        found = [{**whole, "ts": start, "dur": end - start, "args": about}]
        return found + [{**of_waits, "tid": tid, "ts": since, "dur": until - since} for since, until, tid in waits]


class Tape:
    """The calls of this process, on all its communicators, since ``begin``."""

    def __init__(self) -> None:
        self.begin, self.users = monotonic(), 0  # how many recordings and traces need it
        self.calls: deque[TapedCall] = deque()
        self.is_full = False  # whether the first calls are not kept any more
        self.last: dict[Recorder, TapedCall] = {}  # the last collective of each communicator that makes more
        self._under_way: defaultdict[int, list[TapedCall]] = defaultdict(list)
        """What nobody has waited for: messages, and collectives that do not block, by the number of what is pending."""
        self._waits: dict[int, tuple[TapedCall, float, int]] = {}
        """What threads wait for, by the number of what was begun, since when, and which thread."""
        self._submitted: dict[float, TapedCall] = {}  # what was handed in to a thread of mpicoll's, by that time
        self.communicators: dict[str, list[int]] = {}  # their ranks in the job's world, by their names
        self.threads: dict[int, str] = {}
        self._backward_of: dict[float, int] = {}  # the backward passes in which something was handed in, by that time

    def _add(self, call: TapedCall) -> TapedCall:
        if len(self.calls) == MOST:
            self._forget(self.calls.popleft())
        self.calls.append(call)
        self._this_thread()
        return call

    def _this_thread(self) -> int:
        me = threading.get_ident()
        if me not in self.threads:
            self.threads[me] = threading.current_thread().name
        return me

    def _forget(self, call: TapedCall) -> None:
        """Let go what leads to a call that is not kept any more."""
        self.is_full = True
        self._submitted.pop(call.issued, None)
        known = self._under_way[id(call.pending)]
        if known[:1] == [call]:
            del known[0]

    # -- collectives --------------------------------------------------------------------------------------------------

    def collective_begins(self, recorder: Recorder) -> None:
        """A collective begins, in the method that makes it."""
        self.last[recorder] = call = self._add(TapedCall(recorder.name, *recorder.last(), monotonic()))
        call.backward = backward_pass(sys._getframe(1))

    def was_handed_in(self, recorder: Recorder, site: Site, when: float | None) -> None:
        """The program has handed in the last collective there and then."""
        call = self.last.get(recorder)
        if call is not None:
            call.site = site
            if when is not None:
                call.issued, call.backward = when, self._backward_of.pop(when, None)
                self._submitted[when] = call

    def hand_in(self, when: float) -> None:
        """The program hands something in to a thread of mpicoll's."""
        if (found := backward_pass(sys._getframe(1))) is not None:
            self._backward_of[when] = found

    def collective_returns(self, recorder: Recorder, state: str | None) -> None:
        """The method returns, or a wait for the last collective does. Its ``state`` is None if it was never made."""
        call = self.last.get(recorder)
        if call is None:
            return
        if state is None:
            del self.last[recorder]
            self.calls.remove(call)
        elif call.returned is None:
            call.returned, call.state = monotonic(), state
        elif call.waits:
            since, _, thread = call.waits[-1]
            call.waits[-1] = since, monotonic(), thread

    def wait_for_last(self, recorder: Recorder) -> None:
        """Somebody waits for the last collective, which does not block."""
        if (call := self.last.get(recorder)) is not None:
            call.waits.append((now := monotonic(), now, self._this_thread()))

    def completion(self, recorder: Recorder) -> Callable[[object], None]:
        """What is to be called when the last collective is complete, if it does not block."""
        call = self.last.get(recorder)
        return nothing if call is None else lambda _: setattr(call, "complete", monotonic())

    # -- what is pending ----------------------------------------------------------------------------------------------

    def message_begins(self, recorder: Recorder, pending: Pending) -> None:
        """A message begins, or the last collective is one that does not block."""
        call = self.last.get(recorder)
        if pending.is_message():
            call = self._add(TapedCall(recorder.name, None, pending, site_now(), monotonic()))
            if pending.operation[0] in "iI":
                call.returned = call.issued
        elif call is None or pending.what != call.what.description:
            return  # it is nobody's, and complete
        call.pending = pending
        self._under_way[id(pending)].append(call)

    def wait_begins(self, name: str, begun: Begun) -> None:
        pending, since = begun
        if known := self._under_way[id(pending)]:
            call = known.pop(_nearest(known, since))
        elif not pending.is_message():
            return
        else:  # a call that blocks
            call = self._add(TapedCall(name, None, pending, site_now(), since))
        self._waits[id(begun)] = call, monotonic(), self._this_thread()

    def wait_ends(self, begun: Begun) -> None:
        call, since, thread = self._waits.pop(id(begun), (None, 0.0, 0))
        if call is not None:
            call.waits.append((since, monotonic(), thread))
            if call.number is None:
                call.state = DONE

    @contextmanager
    def waiting(self, handed_in: float) -> Iterator[None]:
        """A thread waits for what was handed in then."""
        since = monotonic()
        try:
            yield
        finally:
            if (call := self._submitted.get(handed_in)) is not None:
                call.waits.append((since, monotonic(), self._this_thread()))

    # -- what is told -------------------------------------------------------------------------------------------------

    def copied(self, begin: float) -> Rows:
        """The calls that were issued since then."""
        now = monotonic()
        waits_now: dict[TapedCall, list[Wait]] = {}
        for call, since, thread in [*self._waits.values()]:
            waits_now.setdefault(call, []).append((since, now, thread))
        kept = [*self.calls]
        if self.is_full and kept:
            begin = max(begin, kept[0].issued)
        main = threading.main_thread().ident or 0
        rows_of = {thread: number for number, thread in enumerate(self.threads, 1)} | {main: 0}
        rows = [
            {"ph": "M", "name": "thread_name", "tid": rows_of[thread], "args": {"name": _ROWS.get(name, name)}}
            for thread, name in self.threads.items()
        ]
        for each in kept:
            if each.issued >= begin:
                rows += each.rows(now, waits_now.get(each, ()), rows_of)
        return Rows(socket.gethostname(), [*self.communicators.items()], begin, now, _apart(rows), None)


def _nearest(calls: list[TapedCall], since: float) -> int:
    """Where the call is that was issued at about that time."""
    at = bisect_left(calls, since, key=lambda call: call.issued)
    return min(range(max(0, at - 1), min(at + 1, len(calls))), key=lambda each: abs(calls[each].issued - since))


def _apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where a thread waits for several calls at once, one wait after the other: what overlaps cannot be shown."""
    taken: dict[int, float] = {}
    for row in sorted((row for row in rows if row.get("cat") == WAIT), key=lambda row: row["ts"] + row["dur"]):
        end = row["ts"] + row["dur"]
        row["ts"] = max(row["ts"], taken.get(row["tid"], row["ts"]))
        row["dur"], taken[row["tid"]] = end - row["ts"], end
    return rows


_ROWS = {"MainThread": "program", "mpicoll": "asynchronous calls"}
"""What the rows of some threads are called, by the names of the threads."""


def piece(recording: Rows, first: int) -> Rows:
    """Its rows from number ``first`` on. What does not fit into one message is told when somebody asks for ``rest``."""
    size, last = 0, first
    while last < len(recording.rows) and size < _PIECE:
        size += len(str(recording.rows[last]))
        last += 1
    return recording.changed(rows=recording.rows[first:last], rest=last if last < len(recording.rows) else None)


class TapedWaits(Waits):
    """What threads wait for, noted on a tape."""

    __slots__ = ()

    def append(self, begun: Begun) -> None:
        if self.tape is not None:
            self.tape.wait_begins(self.name, begun)
        super().append(begun)

    def is_complete(self, begun: Begun) -> None:
        if self.tape is not None:
            self.tape.wait_begins(self.name, begun)
            self.tape.wait_ends(begun)

    def remove(self, begun: Begun) -> None:
        super().remove(begun)
        if self.tape is not None:
            self.tape.wait_ends(begun)


active: Tape | None = None  # the one that runs now


def begin() -> Tape:
    """Let the tape run. Communicators must be told."""
    global active
    active = active or Tape()
    active.users += 1
    return active


def end() -> None:
    """The tape that runs is needed by one less."""
    global active
    if active is not None:
        active.users -= 1
        active = active if active.users else None
