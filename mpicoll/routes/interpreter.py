"""The interpreter, which runs a schedule over any transport.

The interpreter says which memory is sent, received, reduced and copied in each step. The transport says how.
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
        """The memory of these blocks."""


def carry_out(schedule: Schedule, memory: Memory[Region], transport: Transport[Region]) -> None:
    """Hand one rank's schedule to a transport, action by action. A transport may carry the actions out at once, or bind
    them into a plan that does so later."""
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
