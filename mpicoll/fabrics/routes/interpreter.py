"""The interpreter, which runs a schedule over any transport.

The interpreter says which memory is sent, received, reduced and copied in each step. The transport says how.
"""

from __future__ import annotations

from mpicoll.algorithms.steps import Copy, Recv, RecvReduce, Schedule, Send
from mpicoll.fabrics.routes.spaces import Spaces
from mpicoll.fabrics.transports.transport import Transport


def carry_out(schedule: Schedule, spaces: Spaces, transport: Transport) -> None:
    """Hand one rank's schedule to a transport, action by action. A transport may carry the actions out at once, or bind
    them into a plan that does so later."""
    region = spaces.region
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
