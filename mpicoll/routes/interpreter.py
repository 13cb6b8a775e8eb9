"""What a step means: the interpreter that every route of a schedule runs under.

A route says how a region of memory reaches another rank; the interpreter says which region, and when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from mpicoll.schedule import Blocks, Copy, Recv, RecvReduce, Schedule, Send, Space

__all__ = ["Memory", "Route", "carry_out"]

Region = TypeVar("Region")
Region_co = TypeVar("Region_co", covariant=True)


class Memory(Protocol[Region_co]):
    """A rank's three spaces."""

    def region(self, space: Space, blocks: Blocks) -> Region_co:
        """Where these blocks lie."""


class Route(ABC, Generic[Region]):
    """How regions reach other ranks. What is named between two calls of ``end_step`` may proceed at once; the order
    of two messages between the same ranks is the order in which they are named."""

    @abstractmethod
    def send(self, peer: int, region: Region) -> None:
        """Send the region."""

    @abstractmethod
    def recv(self, peer: int, region: Region) -> None:
        """Take the region in."""

    @abstractmethod
    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        """Take a region in and combine it with ``mine``, in the order that ``mine_first`` says."""

    @abstractmethod
    def copy(self, source: Region, target: Region) -> None:
        """Copy a region to another."""

    @abstractmethod
    def end_step(self) -> None:
        """What was named since the last call is done before anything named later begins."""


def carry_out(schedule: Schedule, memory: Memory[Region], route: Route[Region]) -> None:
    """Carry out one rank's schedule; a route that binds does so when what it bound is called."""
    region = memory.region
    for step in schedule.steps:
        for action in step:
            match action:
                case Send(peer, blocks, from_):
                    route.send(peer, region(from_, blocks))
                case Recv(peer, blocks, into):
                    route.recv(peer, region(into, blocks))
                case RecvReduce(peer, blocks, mine, into, mine_first):
                    route.recv_reduce(peer, region(mine, blocks), region(into, blocks), mine_first)
                case Copy(blocks, from_, into, to):
                    route.copy(region(from_, blocks), region(into, to or blocks))
        route.end_step()
