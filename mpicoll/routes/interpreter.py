"""What a step means: the interpreter under which every transport runs a schedule.

A transport says how a region of memory reaches another rank. The interpreter says which region, and when.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from mpicoll.schedule import Blocks, Copy, Recv, RecvReduce, Schedule, Send, Space
from mpicoll.transports.transport import Transport

__all__ = ["Memory", "carry_out"]

Region = TypeVar("Region")
Region_co = TypeVar("Region_co", covariant=True)


class Memory(Protocol[Region_co]):
    """A rank's three spaces."""

    def region(self, space: Space, blocks: Blocks) -> Region_co:
        """Where these blocks lie."""


def carry_out(schedule: Schedule, memory: Memory[Region], transport: Transport[Region]) -> None:
    """Carry out one rank's schedule; a transport that binds does so when what it bound is called."""
    region = memory.region
    for step in schedule.steps:
        for action in step:
            match action:
                case Send(peer, blocks, from_):
                    transport.send(peer, region(from_, blocks))
                case Recv(peer, blocks, into):
                    transport.recv(peer, region(into, blocks))
                case RecvReduce(peer, blocks, mine, into, mine_first):
                    transport.recv_reduce(peer, region(mine, blocks), region(into, blocks), mine_first)
                case Copy(blocks, from_, into, to):
                    transport.copy(region(from_, blocks), region(into, to or blocks))
        transport.end_step()
