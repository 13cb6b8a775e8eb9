"""What is known of the calls that a program makes of another library: by communicator, and by what is under way."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from time import monotonic
from typing import Any, TypeVar

from mpicoll.calls.settings import Settings
from mpicoll.errors import StateError
from mpicoll.supervise import watch
from mpicoll.supervise.record import CLOSED, FREED, OPEN, Begun, Pending, Record, Recorder, Waits
from mpicoll.supervise.watched import GIVES, TAKES, Watched

_MOST_KEPT = 4096
"""Different calls of a communicator that are kept. A program whose sizes all differ begins anew."""
_LOOK_AFTER = 64
"""Calls under way, after which those that are complete are forgotten: a program may never ask for them. The next look
comes when twice as many are under way as were left, so that it costs each call the same."""

T = TypeVar("T")


def around(real: Any, body: Callable[..., Any]) -> Any:
    """A function in the place of another library's. This ``body`` gets that one first, and then the arguments."""
    return wraps(real)(lambda *args, **named: body(real, *args, **named))


class Calls:
    """The calls of one communicator."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.waits = Waits()
        self.known: dict[Hashable, Any] = {}  # what was found of each different call
        self.watched: Watched | None = None

    def watch(self, group: watch.Group, settings: Settings) -> None:
        """Let the ranks of this group meet, and watch over their calls. Collective."""
        timeout, dump, trace = settings.timeout, settings.dump, settings.trace
        self.watched = watch.watch(group, self.recorder, self.waits, timeout, False, dump=dump, trace=trace)

    def keep(self, key: Hashable, found: T) -> T:
        if len(self.known) >= _MOST_KEPT:
            self.known.clear()
        self.known[key] = found
        return found

    def begin(self, record: Record) -> Recorder | None:
        """A collective begins. None if it is not watched any more. If two threads make collectives of this communicator
        at once, nobody knows in which order the other ranks make theirs: it is let go."""
        if self.recorder.state != OPEN:
            return None
        try:
            self.recorder.begin(record)
        except StateError:
            self.recorder.state = CLOSED
            return None
        return self.recorder

    def noted(self, record: Record, call: Callable[..., T], *args: Any, **named: Any) -> T:
        """What ``call`` returns, which makes a collective. It is noted while it is under way."""
        recorder = self.begin(record)
        if recorder is None:
            return call(*args, **named)
        try:
            found = call(*args, **named)
        except BaseException as e:
            self.has_failed(e)
            raise
        recorder.under_way = False
        return found

    def until(self, begun: Begun, call: Callable[..., T], *args: Any, **named: Any) -> T:
        """What ``call`` returns, which waits for what has begun."""
        self.waits.append(begun)
        try:
            return call(*args, **named)
        finally:
            self.waits.remove(begun)

    def has_failed(self, error: BaseException) -> None:
        """The last collective has raised this: its arguments were refused, and nothing was sent."""
        self.recorder.retract()

    def free(self) -> None:
        self.recorder.state = FREED
        self.recorder.close()


InFlight = tuple[Any, Calls, Begun, int | None]
"""What was begun and not waited for: the library's own thing, whose calls it belongs to, and what it is. A collective
has the number by which its recorder knows it, a message None. It is made for each message, so it is a plain tuple."""


def waited_for(found: InFlight, wait: Callable[..., T], *args: Any, **named: Any) -> T:
    """What ``wait`` returns, which waits for this. The last collective is under way then, as one that blocks is."""
    _, calls, begun, number = found
    recorder = calls.recorder
    if number is None or number != recorder.begun - 1 or recorder.state != OPEN:
        return calls.until(begun, wait, *args, **named)
    recorder.under_way = True
    try:
        return wait(*args, **named)
    finally:
        recorder.under_way = False


class UnderWay(dict[int, InFlight]):
    """All that this process has begun and not waited for. ``is_complete`` asks the library about one of them."""

    def __init__(self, is_complete: Callable[[Any], bool]) -> None:
        super().__init__()
        self._is_complete = is_complete
        self._look_after = _LOOK_AFTER

    def begin(self, key: int, thing: Any, calls: Calls, pending: Pending, number: int | None = None) -> None:
        """A message begins, or the collective of this number."""
        calls.recorder.begin_message(pending)
        if len(self) >= self._look_after:
            self.forget_complete()
            self._look_after = max(_LOOK_AFTER, 2 * len(self))
        self[key] = thing, calls, (pending, monotonic()), number

    def forget_complete(self, besides: object = None) -> None:
        """Forget what is complete, but do not look at what another thread waits for."""
        for key, (thing, _, begun, _) in [*self.items()]:
            if begun is not besides and self._is_complete(thing):
                self.pop(key, None)

    def has_messages(self, besides: object) -> int:
        """Which messages may be under way, besides the one that is given: see ``watched.under_way``."""
        messages = [begun for _, _, begun, number in [*self.values()] if number is None]
        return (GIVES | TAKES) * any(begun is not besides for begun in messages)


def not_complete(operation: str, record: Record) -> Pending:
    """The wait for a collective that does not block."""
    missing = f"{record.description} is not complete"
    return Pending(operation, record.description, record.elements, record.dtype, missing)
