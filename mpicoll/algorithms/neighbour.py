"""Neighbour exchange. Every rank talks only to the rank before it and the rank after it."""

from __future__ import annotations

from mpicoll.algorithms.folding import Fold
from mpicoll.algorithms.steps import OUTPUT, Place, Recv, Send, Steps


def allgather(at: Place) -> Steps:
    """Pairs of neighbours exchange their blocks. Then each passes on what came last, to its two neighbours in turn.

    Cost: p/2 a + (p-1)/p n b; where p is odd, 2 a + n b more
    Source: Chen, Zhang, Zhang and Yuan, Performance evaluation of allgather algorithms on terascale Linux cluster with
      Fast Ethernet, HPC-Asia (2005)
    """
    members = at.size & -2
    fold = Fold(at, members)
    return fold.allgather(_exchange(fold, members))


def _exchange(fold: Fold, members: int) -> Steps:
    me, pairs = fold.member, members // 2
    side = -1 if me % 2 else 1  # where the other rank of the pair is
    peer = fold.rank(me + side)
    yield (Send(peer, fold.blocks(me, me + 1), OUTPUT), Recv(peer, fold.blocks(me + side, me + side + 1), OUTPUT))
    last = pair = me // 2
    for step in range(1, pairs):
        side = -side
        came = (pair + side * ((step + 1) // 2)) % pairs
        peer = fold.rank((me + side) % members)
        yield (
            Send(peer, fold.blocks(2 * last, 2 * last + 2), OUTPUT),
            Recv(peer, fold.blocks(2 * came, 2 * came + 2), OUTPUT),
        )
        last = came
