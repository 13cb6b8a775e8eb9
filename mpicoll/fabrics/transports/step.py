"""One step of a schedule over persistent MPI requests: it starts them, acts on what arrives, and waits for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mpi4py import MPI

from mpicoll.calls.plan import Plan
from mpicoll.fabrics.transports.transport import Array

TAGS = (1 << 15) - 2
"""The number of tags for messages. MPI guarantees two more. Two messages between the same
ranks have the same tag only if there are so many messages between them."""


class Held:
    """What a plan needs as long as it lives: persistent requests, datatypes, and the memory that they point to.

    When it is dropped it frees the requests and the datatypes. The memory outlives them."""

    def __init__(self) -> None:
        self._requests: list[MPI.Prequest] = []
        self._datatypes: list[MPI.Datatype] = []
        self._memory: list[Array] = []

    def request(self, request: MPI.Prequest) -> MPI.Prequest:
        self._requests.append(request)
        return request

    def datatype(self, datatype: MPI.Datatype) -> MPI.Datatype:
        self._datatypes.append(datatype)
        return datatype

    def memory(self, *arrays: Array) -> None:
        """Hold memory: requests know it only by its address."""
        self._memory += arrays

    def __del__(self, is_finalized: Callable[[], bool] = MPI.Is_finalized) -> None:
        if not is_finalized():  # at the end of the program, this module may be empty already
            for request in self._requests:
                request.Free()
            for datatype in self._datatypes:
                datatype.Free()


class Arrival(NamedTuple):
    """A receive, what is done when it is complete, and what then starts the next receive of the same message."""

    request: MPI.Prequest
    act: Plan
    start_next: Plan | None


@dataclass
class Step:
    """The messages and copies of a step. A transport adds to it until it is ``bound``."""

    receives: list[MPI.Prequest] = field(default_factory=list)
    """Receives that are started before anything else. MPI must store a message that arrives before its receive."""
    sends: list[MPI.Prequest] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    """What is done when a receive is complete."""
    copies: list[Plan] = field(default_factory=list)
    """What is done after all messages."""

    def bound(self) -> list[Plan]:
        """The step as plans, to be run one after another."""
        requests = [*self.receives, *self.sends]
        exchange: list[Plan] = []
        if self.arrivals:
            exchange = [_in_order(requests, self.arrivals)]
        elif requests:  # nothing is done with what arrives
            exchange = [partial(MPI.Prequest.Startall, requests), partial(MPI.Request.Waitall, requests)]
        return [*exchange, *self.copies]


def _in_order(requests: list[MPI.Prequest], arrivals: list[Arrival]) -> Plan:
    """A step that acts on what arrives. It waits for the pieces in their order."""
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
