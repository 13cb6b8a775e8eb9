"""One step of a schedule as persistent MPI requests: what is started, what is done with arrivals, and the waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpi4py import MPI

from mpicoll.calls.plan import Plan

__all__ = ["TAGS", "Arrival", "Held", "Step"]

TAGS = (1 << 15) - 2
"""Tags of messages; MPI guarantees two more. A tag is used again only after so many messages between two ranks."""

SPINS, YIELDS = 20, 200
"""Looks at the requests before a rank lets others have its core, and before it pauses between two looks."""
PAUSE = 2e-5
"""Seconds."""

_MPI_WAITS_WELL = MPI.get_vendor()[0] == "Open MPI"


class Held:
    """What a plan holds of MPI, and gives back when it is dropped: persistent requests and datatypes."""

    def __init__(self) -> None:
        self._requests: list[MPI.Prequest] = []
        self._datatypes: list[MPI.Datatype] = []

    def request(self, made: MPI.Prequest) -> MPI.Prequest:
        """Hold a request."""
        self._requests.append(made)
        return made

    def datatype(self, made: MPI.Datatype) -> MPI.Datatype:
        """Hold a datatype."""
        self._datatypes.append(made)
        return made

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            for request in self._requests:
                request.Free()
            for kind in self._datatypes:
                kind.Free()


class Arrival(NamedTuple):
    """What is done when a request is complete, and what starts the next one of its kind."""

    request: MPI.Prequest
    act: Plan
    start_next: Plan | None


@dataclass
class Step:
    """What a step consists of, before it is bound."""

    receives: list[MPI.Prequest] = field(default_factory=list)
    """Started before anything else: a message that finds its receive waiting is not stored on the way."""
    sends: list[MPI.Prequest] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    """What is done when a receive is complete."""
    openings: list[Plan] = field(default_factory=list)
    """What is done as soon as the receives wait."""
    answers: list[MPI.Prequest] = field(default_factory=list)
    """Sends that the openings and the arrivals start."""
    copies: list[Plan] = field(default_factory=list)
    reductions: int = 0
    """Messages that are reduced. Each may arrive in several pieces."""
    long_reductions: int = 0
    """Those of them that arrive in more than two pieces."""

    def bound(self) -> list[Plan]:
        """The step as plans, to be run one after another."""
        requests = [*self.receives, *self.sends]
        if self.openings:
            exchange = [_as_they_come(requests, self.arrivals, self.openings, self.answers)]
        elif self.arrivals and (self.long_reductions == 0 or self.reductions == 1):
            exchange = [_in_order(requests, self.arrivals)]
        elif self.arrivals:
            exchange = [_as_they_come(requests, self.arrivals)]
        else:
            exchange = [_exchange(requests)] if requests else []
        return [*exchange, *self.copies]


def _exchange(requests: list[MPI.Prequest]) -> Plan:
    """A step whose messages need nothing of us."""
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall

    def exchange() -> None:
        start(requests)
        finish(requests)

    return exchange


def _in_order(requests: list[MPI.Prequest], arrivals: list[Arrival]) -> Plan:
    """A step with one long message, or short ones: pieces are taken in their order."""
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall
    waits = [(a.request.Wait, a.act, a.start_next) for a in arrivals]

    def take_in_order() -> None:
        start(requests)
        for wait, act, start_next in waits:
            wait()
            act()
            if start_next is not None:
                start_next()
        finish(requests)

    return take_in_order


def _as_they_come(
    requests: list[MPI.Prequest],
    arrivals: list[Arrival],
    openings: Sequence[Plan] = (),
    answers: Sequence[MPI.Prequest] = (),
) -> Plan:
    """A step with several long messages: to wait for a piece of one must not keep another from going on, which may be
    the one that the first one's sender waits for."""
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall
    pieces, all_of_it = [a.request for a in arrivals], [*requests, *answers]

    def take_as_they_come() -> None:
        start(requests)
        for opening in openings:
            opening()
        while (i := _any_of(pieces)) != MPI.UNDEFINED:  # until none is started any more
            arrivals[i].act()
            if (start_next := arrivals[i].start_next) is not None:
                start_next()
        finish(all_of_it)

    return take_as_they_come


def _any_of(requests: list[MPI.Prequest]) -> int:
    """MPI's Waitany. MPICH's polls until the scheduler takes the core away, milliseconds later, from a rank that one on
    the same core waits for. To poll here keeps other threads out of Python, so it pauses soon."""
    if _MPI_WAITS_WELL:
        return MPI.Request.Waitany(requests)
    test, turns = MPI.Request.Testany, 0
    while True:
        i, found = test(requests)
        if found:
            return i
        turns += 1
        if turns > YIELDS:
            time.sleep(PAUSE)
        elif turns > SPINS:
            os.sched_yield()
