"""Folding: how an algorithm for a power of two of ranks, or for an even number, serves any number of ranks.

The first ranks form pairs. The second rank of a pair hands its input to the first, which acts for both. At the end, the
second rank gets its result. The ranks that act are the members. They are numbered in the order of their ranks.
"""

from __future__ import annotations

from mpicoll.algorithms.steps import INPUT, OUTPUT, Blocks, Copy, Place, Recv, RecvReduce, Send, Space, Steps, one, run


class Fold:
    """The part of a rank when ``members`` of the ranks, at least half, act for all. Ranks are counted from the root.

    ``paired`` says whether this rank forms a pair with ``twin``. ``away`` says whether ``twin`` acts for it.
    """

    def __init__(self, at: Place, members: int) -> None:
        self._at, self._pairs = at, at.size - members
        self.paired = at.shifted < 2 * self._pairs
        self.away = self.paired and at.shifted % 2 == 1
        self.twin = at.actual(at.shifted ^ 1)
        self.member = at.shifted // 2 if self.paired else at.shifted - self._pairs

    def rank(self, member: int) -> int:
        """The rank that is this member."""
        return self._at.actual(self._first(member))

    def blocks(self, start: int, stop: int) -> Blocks:
        """The blocks of the ranks that members ``start`` to ``stop`` act for, if each rank has one block."""
        return run(self._first(start), self._first(stop))

    def _first(self, member: int) -> int:
        return member + min(member, self._pairs)

    def reduce(self, blocks: int, into: Space) -> Steps:
        """Each of a pair combines one half of their two vectors. The first then collects the whole in ``into``."""
        lower, upper = run(0, blocks // 2), run(blocks // 2, blocks)
        if self.away:
            yield (Send(self.twin, lower, INPUT), RecvReduce(self.twin, upper, INPUT, into, mine_first=False))
            yield (Send(self.twin, upper, into),)
        else:
            yield (Send(self.twin, upper, INPUT), RecvReduce(self.twin, lower, INPUT, into, mine_first=True))
            yield (Recv(self.twin, upper, into),)

    def spread(self, blocks: Blocks) -> Steps:
        """The first of a pair sends blocks of its OUTPUT to the second."""
        yield (Recv(self.twin, blocks, OUTPUT) if self.away else Send(self.twin, blocks, OUTPUT),)

    def allgather(self, exchange: Steps) -> Steps:
        """An all-gather. In ``exchange``, a member that has the blocks of the ranks it acts for collects all blocks."""
        rank, size = self._at.rank, self._at.size
        yield (Copy(one(rank), INPUT, OUTPUT),)
        if self.paired:
            yield (Send(self.twin, one(rank), OUTPUT) if self.away else Recv(self.twin, one(self.twin), OUTPUT),)
        if not self.away:
            yield from exchange
        if self.paired:
            second = rank if self.away else self.twin
            yield from self.spread(run(0, second) + run(second + 1, size))
