"""A communicator of this process, as those see it who watch over its calls."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from mpicoll.calls.record import Begun
from mpicoll.fabrics.thread_job import Onlooker
from mpicoll.guard.elastic import Cut
from mpicoll.guard.recorder import BROKEN, Recorder
from mpicoll.guard.sites import handled, place_of, whereabouts
from mpicoll.guard.watch.protocol import Account

__all__ = [
    "BEAT",
    "BEAT_WHILE_WAITING",
    "LATE",
    "LONG",
    "LOOK",
    "SECONDS_TO_HEAR",
    "SHORT",
    "TIME_IS_UP",
    "WARN",
    "Watched",
    "is_alone",
    "patience_at_end",
    "under_way",
]

LOOK = 0.5
"""Seconds between two looks at a process's communicators."""
BEAT, BEAT_WHILE_WAITING = 30.0, 3.0
"""Seconds between two messages to which the judge answers that it is there."""
LATE = 5.0
"""Seconds of a wait, until it is asked whether it can end at all."""
SECONDS_TO_HEAR = 10.0
"""Seconds that a process has beyond a timeout, until others think that it does not answer."""
_LONG, _VERY_LONG = 1.0, 60.0
"""Seconds after which the judge is told of a wait, and after which it warns."""
_GRACE = 10.0
"""Seconds in which a rank's own exception may end the program, where ranks agree on calls and bound them themselves."""


under_way: list[Callable[[bool], bool]] = []
"""Each says whether messages of this rank are under way. It may look at them if it is told so."""


def is_alone() -> bool:
    """Whether the program has only its main thread, and no timer whose signal may wake it."""
    timers = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
    if any(signal.getitimer(each)[0] for each in timers):
        return False
    return all(each is threading.main_thread() or isinstance(each, Onlooker) for each in threading.enumerate())


def patience_at_end(timeout: float) -> float:
    """Seconds in which a process need not answer while others are at their end: it may compute, in one long call of C
    that holds Python's lock. The judge and the members have the same patience, with the timeout of calls."""
    return max(timeout, BEAT) + SECONDS_TO_HEAR


SHORT, LONG, WARN, TIME_IS_UP = range(4)
"""How long a wait has lasted."""


@dataclass(eq=False)
class _Wait:
    """How long this process has waited for one thing. Time in which it was stopped does not count."""

    seconds: float = 0.0
    _last: object = None
    """What it waited for at the last look. It is kept, so that nothing else can have its address."""

    def look(self, now: object) -> float:
        """Count on if it waits for the same call's number or the same object as at the last look; begin anew if not."""
        same = now is self._last or (type(now) is int and now == self._last)
        self.seconds = self.seconds + LOOK if now is not None and same else 0.0
        self._last = now
        return self.seconds


@dataclass(eq=False)
class Watched:
    """Rank r of the communicator is rank ``ranks[r]`` of the job's world. ``name`` is the same on all of them."""

    name: str
    ranks: list[int]
    recorder: Recorder
    waits: list[Begun]
    """What threads wait for besides collectives."""
    timeout: float
    """Seconds in which a call must end."""
    agrees: bool
    """Whether ranks agree on each call before data moves."""
    cut: Cut | None = None
    """Ends the calls of this communicator alone; None if the job ends instead."""
    table: str = ""
    """Whose table of measurements its algorithms are chosen by, with the section's hash."""
    seconds: float = 0.0
    """How long the oldest wait has lasted."""
    told: tuple[int, str, int] | None = None
    """What the judge knows: calls, state, and how long the wait has lasted."""
    _call: _Wait = field(default_factory=_Wait)
    _message: _Wait = field(default_factory=_Wait)

    def look(self) -> None:
        """Count how long the call under way has lasted, and the oldest wait for a message."""
        begun = self.recorder.look()
        in_call = self._call.look(begun if self.recorder.under_way else None)
        self.seconds = max(in_call, self._message.look(next(iter([*self.waits]), None)))

    def state(self) -> tuple[int, str, int]:
        """How many calls can be compared, whether more can come, and how long the oldest wait has lasted."""
        recorder, state = self.recorder, None
        while recorder.state != state:  # else the calls belong to another state, as of one that ends midway meanwhile
            state = recorder.state
            # Where ranks agree on a call, they compare it themselves. It may have ended midway because it differs.
            calls = recorder.begun - (self.agrees and (recorder.under_way or state == BROKEN))
            calls = min([calls, *recorder.unsure])
        limit = self.timeout + (_GRACE if self.agrees else 0.0)
        reached = [self.seconds >= each for each in (_LONG, _VERY_LONG, limit)]
        wait = TIME_IS_UP if reached[2] else reached[:2].count(True)
        return calls, state, wait

    def account(self, number: int | None, leaving: bool = False) -> Account:
        """What this rank says of the call with this number (of the last one if None), and what it does now. ``leaving``
        says whether its program has ended."""
        recorder, waits = self.recorder, [*self.waits]
        begun = recorder.begun
        seconds = self.seconds if recorder.under_way or waits else 0.0  # the last look may be older than the wait's end
        number = begun - 1 if number is None else number
        made = next((made for made in recorder.calls(number) if made.number == number), None)
        return Account(
            begun=begun,
            state=recorder.state,
            number=number,
            description=made.record.description if made else None,
            site=place_of(made.site) if made else None,
            waits=recorder.under_way and number == begun - 1,
            message=f"{waits[0][0].operation}: {waits[0][0].missing}" if waits else None,
            sources=[self.ranks[rank] for rank in waits[0][0].sources] if waits else [],
            targets=[self.ranks[rank] for rank in waits[0][0].targets] if waits else [],
            alone=is_alone(),
            under_way=seconds >= LATE and any(each(False) for each in under_way),
            seconds=seconds,
            stuck=0.0 if self.agrees else seconds,  # where ranks agree, their waits end by themselves
            where=whereabouts(),
            handles=handled(),
            leaving=leaving,
        )
