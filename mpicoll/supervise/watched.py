"""A communicator of this process, as those see it who watch over its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from mpicoll.errors import MpicollError
from mpicoll.node.loaded import kernel
from mpicoll.supervise.messages import Ends, Lock, RankStatus, State
from mpicoll.supervise.record import BROKEN, Pending, Recorder, Waits
from mpicoll.supervise.report import MOST_NAMED
from mpicoll.supervise.sites import failed_test, handled, is_alone, place_of, whereabouts
from mpicoll.supervise.tape import Tape, TapedWaits

LOOK = 0.5  # seconds between two looks at a process's communicators
HEARTBEAT = 30.0  # seconds between two messages to which the coordinator answers that it is there
LATE = 5.0  # seconds of a wait, until it is asked whether it can end at all
SECONDS_TO_HEAR = 10.0  # seconds that a process has beyond a timeout, until others think that it does not answer
_LONG, _VERY_LONG = 1.0, 60.0  # seconds after which the coordinator is told of a wait, and after which it warns
_GRACE = 10.0
"""Seconds in which a rank's own exception may end the program, where ranks agree on calls and bound them themselves."""
_BY_KERNEL = "node"
"""The route of a call that the kernel carries out through its own memory: ``NODE`` in ``mpicoll.calls.choose``."""

GIVES, TAKES = 1, 2
under_way: list[Callable[[bool, object], int]] = []
"""Each says whether messages of this rank are under way besides the given one, and may look at them if told so: 0, or
the sum of ``GIVES``, where some may come from this rank, and ``TAKES``, where some may be taken by it."""
locks: list[Lock] = []  # the locks of windows that this rank holds


def patience_at_end(timeout: float) -> float:
    """Seconds in which a process need not answer while others are at their end: it may compute, in one long call of C
    that holds Python's lock. The coordinator and the agents have the same patience, with the timeout of calls."""
    return max(timeout, HEARTBEAT) + SECONDS_TO_HEAR


SHORT, LONG, WARN, TIME_IS_UP = range(4)  # how long a wait has lasted


class Cut(Protocol):
    """Ends the calls of one communicator alone, where the job goes on."""

    def look(self) -> list[int]:
        """See whether ranks of the communicator are lost, and cut it then. Returns which."""

    def fail(self, error: MpicollError) -> None:
        """Cut it: its ranks cannot go on together, for this reason."""


class _Wait:
    """How long this process has waited for one thing. Time in which it was stopped does not count."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._last: object = None
        """What it waited for at the last look. It is kept, so that nothing else can have its address."""

    def look(self, now: object) -> float:
        """Count on if it waits for the same call's number or the same object as at the last look; begin anew if not."""
        self._seconds, self._last = self._seconds + LOOK if self._is_of(now) else 0.0, now
        return self._seconds

    def of(self, now: object) -> float:
        """The seconds of this wait by the last look, which may have seen another one."""
        return self._seconds if self._is_of(now) else 0.0

    def _is_of(self, now: object) -> bool:
        return now is not None and (now is self._last or (type(now) is int and now == self._last))


@dataclass(eq=False)
class Watched:
    """Rank r of the communicator is rank ``ranks[r]`` of the job's world. ``name`` is the same on all of them."""

    name: str
    ranks: list[int]
    recorder: Recorder
    waits: Waits  # what threads wait for besides collectives
    timeout: float  # seconds in which a call must end
    agrees: bool  # whether ranks agree on each call before data moves
    cut: Cut | None = None  # ends the calls of this communicator alone; None if the job ends instead
    seconds: float = 0.0  # how long the oldest wait has lasted
    reported: State | None = None  # what the coordinator knows
    on_tape: bool = True
    """Whether its calls are noted on a tape. Those that are made on behalf of another communicator's are not."""
    _call: _Wait = field(default_factory=_Wait)
    _message: _Wait = field(default_factory=_Wait)

    def __post_init__(self) -> None:
        self.recorder.name = self.waits.name = self.name

    def note_on(self, tape: Tape | None) -> None:
        """From now on, note on this tape when each call begins, is waited for and ends."""
        if self.on_tape or tape is None:
            self.recorder.note_on(tape)
            self.waits.__class__ = TapedWaits if tape is not None else Waits
            self.waits.tape = tape
            if tape is not None:
                tape.communicators[self.name] = self.ranks

    def look(self) -> None:
        """Count how long the call under way has lasted, and the oldest wait for a message."""
        begun = self.recorder.look()
        self.waits.look()
        in_call = self._call.look(begun if self.recorder.under_way else None)
        self.seconds = max(in_call, self._message.look(next(iter([*self.waits]), None)))

    def state(self) -> State:
        recorder, state = self.recorder, None
        while recorder.state != state:  # else the calls belong to another state, as of one that ends midway meanwhile
            state = recorder.state
            # Where ranks agree on a call, they compare it themselves. It may have ended midway because it differs.
            calls = recorder.begun - (self.agrees and (recorder.under_way or state == BROKEN))
            calls = min([calls, *recorder.unsure])
        limit = self.timeout + (_GRACE if self.agrees else 0.0)
        long, very_long = self.seconds >= _LONG, self.seconds >= _VERY_LONG
        wait = TIME_IS_UP if self.seconds >= limit else WARN if very_long else LONG if long else SHORT
        return State(self.name, calls, state, wait, self.timeout, None)

    def _missing(self, pending: Pending) -> str:
        """What this rank waits for, with the number that another rank has in the job."""
        peers = [*{*pending.ends.sources, *pending.ends.targets}]
        differs = len(peers) == 1 and self.ranks[peers[0]] != peers[0]
        in_job = f": rank {self.ranks[peers[0]]} of the job" if differs else ""
        return f"{pending.operation}: {pending.missing}{in_job}"

    def status(self, number: int | None, leaving: bool = False) -> RankStatus:
        """What this rank says of this call (None: the last one), and of now. ``leaving``: its program is over."""
        recorder, waits = self.recorder, [*self.waits]
        begun = recorder.begun
        seconds = self.seconds if recorder.under_way or waits else 0.0  # the last look may be older than the wait's end
        number = begun - 1 if number is None else number
        made = next((made for made in recorder.calls(number) if made.number == number), None)
        root = made.record.root if made else None
        by_kernel = kernel is not None and made is not None and made.record.route == _BY_KERNEL
        in_call, first = begun if recorder.under_way else None, waits[0] if waits else None
        ends = first[0].ends if first else Ends()
        sources, targets = ([self.ranks[rank] for rank in each] for each in (ends.sources, ends.targets))
        return RankStatus(
            begun=begun,
            state=recorder.state,
            number=number,
            operation=made.record.operation if made else "",
            description=made.record.description if made else None,
            site=place_of(made.site) if made else None,
            root=None if root is None else self.ranks[root],
            ahead=kernel.AHEAD if kernel is not None and by_kernel else 0,
            ago=monotonic() - made.begun if made else 0.0,
            waits=recorder.under_way and number == begun - 1,
            message=self._missing(first[0]) if first else None,
            unreceived=[(self.ranks[each[0]], *each[1:]) for each in self.waits.unreceived(False)[:MOST_NAMED]],
            ends=ends.changed(sources=sources, targets=targets),
            locks=[*locks],
            alone=(alone := is_alone()),
            under_way=alone and seconds >= LATE and any(each(False, first) for each in under_way),
            seconds=seconds,
            # Where ranks agree, they bound their waits. The last look may have seen another wait than that of now.
            stuck=0.0 if self.agrees else max(self._call.of(in_call), self._message.of(first)),
            where=whereabouts(),
            handles=handled(),
            failed=failed_test(),
            leaving=leaving,
        )
