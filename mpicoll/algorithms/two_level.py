"""Two-level algorithms. The ranks of a node work together first, so that a node sends and receives as little as it can.

Each is composed of algorithms that are there: some within each node, and some between the nodes. It does not matter
which ranks are on which node, and nodes may have different numbers of ranks.

The leaders of a node are its ranks that talk to other nodes. All nodes have the same number of them. A leader acts for
its team, which is some ranks of its node. The leaders with the same number, one of each node, form a group.
"""

from __future__ import annotations

from itertools import chain as following

from mpicoll.algorithms import binary, chain, direct, dissemination, ring
from mpicoll.algorithms.composed import among, stages
from mpicoll.algorithms.pipeline import Pipeline
from mpicoll.schedule import INPUT, OUTPUT, SCRATCH, Blocks, Place, Space, Steps, merged, one, run

__all__ = ["allgather", "allreduce", "barrier", "bcast", "reduce", "reduce_scatter", "slices"]


def allreduce(at: Place) -> Steps:
    """A ring reduce-scatter within each node leaves a slice of the vector with each leader. The leaders of a slice
    reduce it on a ring of the nodes. Then each node gathers the slices on a ring. A node sends and receives no more
    than 2(k-1)/k n bytes.

    Cost: 2(m+k-2) a + 2(p-1)/p n b + (p-1)/p n g
    Source: Bayatpour, Chakraborty, Subramoni, Lu and Panda, Scalable reduction collectives with data partitioning-based
      multi-leader design, SC (2017)
    """
    here, k = _Leaders(at), len(at.by_node)
    parts = [run(i * k, (i + 1) * k) for i in range(here.count)]
    parts += [()] * (len(here.node) - here.count)
    yield from among(at, here.node, ring.reduce_scatter, parts, {SCRATCH: OUTPUT})
    yield from among(at, here.group, ring.allreduce, [one(here.number * k + i) for i in range(k)])
    yield from among(at, here.node, ring.allgather, parts)


def slices(at: Place) -> int:
    """A slice for each leader of a node, each with one block for each node."""
    return len(at.by_node) * min(map(len, at.by_node))


def reduce_scatter(at: Place) -> Steps:
    """A ring reduce-scatter within each node leaves each leader with the blocks of all teams that have its number. Each
    group of leaders reduces and scatters them on a ring. Then each leader hands its team their blocks.

    Cost: (m+k-2) a + (p-1)/p n b + (p-1)/p n g
    Source: Bayatpour, Chakraborty, Subramoni, Lu and Panda, Scalable reduction collectives with data partitioning-based
      multi-leader design, SC (2017), on its all-reduce
    """
    here = _Leaders(at)
    yield from among(at, here.node, ring.reduce_scatter, here.blocks_by_leader(), {OUTPUT: SCRATCH})
    yield from among(at, here.group, ring.reduce_scatter, here.blocks_by_team(), {INPUT: SCRATCH, OUTPUT: SCRATCH})
    yield from among(at, here.team, direct.scatter, [one(rank) for rank in here.team], {INPUT: SCRATCH})


def allgather(at: Place) -> Steps:
    """Each leader takes in the blocks of its team. Each group of leaders gathers these on a ring. Then each node
    gathers what its leaders have, on a ring.

    Cost: (m+k-2) a + (p-1)/p n b
    Source: Kandalla, Subramoni, Santhanaraman, Koop and Panda, Designing multi-leader-based allgather algorithms for
      multi-core clusters, IPDPS (2009)
    """
    here = _Leaders(at)
    yield from among(at, here.team, direct.gather, [one(rank) for rank in here.team], {})
    yield from among(at, here.group, ring.allgather, here.blocks_by_team())
    yield from among(at, here.node, ring.allgather, here.blocks_by_leader())


def bcast(at: Place) -> Steps:
    """The segments pass through the nodes on a chain, from leader to leader, and within each node down a binary tree.

    Cost: (k+2log2(m)+s-2)(a + n/s b)
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, Exploiting hierarchy in parallel computer networks
      to optimize collective operation performance, IPDPS (2000)
    """
    node, leaders, home = _around(at)
    hops = (leaders.index(home) - leaders.index(at.root)) % len(leaders)
    between = stages(at, leaders, chain.bcast, at.root, {})
    within = stages(at, node, binary.bcast, home, {}, start=hops)
    return Pipeline([*between, *within], at.segments)


def reduce(at: Place) -> Steps:
    """The segments are reduced up a binary tree within each node, and on a chain through the leaders of all nodes.

    Cost: (k+2log2(m)+s-2)(a + n/s b + n/s g)
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, Exploiting hierarchy in parallel computer networks
      to optimize collective operation performance, IPDPS (2000)
    """
    node, leaders, home = _around(at)
    kept: Space = OUTPUT if at.rank == at.root else SCRATCH
    within = stages(at, node, binary.reduce, home, {OUTPUT: kept})
    levels = (max(map(len, at.by_node)) - 1).bit_length()
    given: Space = kept if len(node) > 1 else INPUT
    between = stages(at, leaders, chain.reduce, at.root, {INPUT: given}, start=2 * levels)
    return Pipeline([*within, *between], at.segments)


def barrier(at: Place) -> Steps:
    """A dissemination barrier within each node, one between the nodes' first ranks, and one within each node again.

    Cost: (2log2(m) + log2(k)) a
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, Exploiting hierarchy in parallel computer networks
      to optimize collective operation performance, IPDPS (2000)
    """
    node, leaders, _ = _around(at)
    for ranks in (node, leaders, node):
        yield from among(at, ranks, dissemination.barrier, [])


def _around(at: Place) -> tuple[tuple[int, ...], list[int], int]:
    """The ranks of this rank's node, the leaders of all nodes if each has one, and the leader of this rank's node. The
    root leads its node."""
    nodes = at.by_node
    leaders = [at.root if at.root in node else node[0] for node in nodes]
    here = next(i for i, node in enumerate(nodes) if at.rank in node)
    return nodes[here], leaders, leaders[here]


class _Leaders:
    """Several leaders of each node, as a rank sees them: as many as the smallest node has ranks, so that in nodes of
    the same size every rank leads. The other ranks of a node are dealt out to its leaders."""

    def __init__(self, at: Place) -> None:
        self._nodes = at.by_node
        self.node = next(node for node in self._nodes if at.rank in node)
        """The ranks of this rank's node."""
        self.count = min(map(len, self._nodes))
        self.number = self.node.index(at.rank) % self.count
        """The number of this rank's leader, among the leaders of the node."""
        self.team = self.node[self.number :: self.count]
        """The leader, and the ranks for which it acts."""
        self.group = tuple(node[self.number] for node in self._nodes)
        """The leaders with that number, of all nodes."""

    def blocks_by_team(self) -> list[Blocks]:
        """The blocks of the team of each leader in the group, if each rank has a block."""
        return [merged(node[self.number :: self.count]) for node in self._nodes]

    def blocks_by_leader(self) -> list[Blocks]:
        """For each rank of the node the blocks of all teams with its number, none if it does not lead."""
        teams = (following(*(node[i :: self.count] for node in self._nodes)) for i in range(self.count))
        return [*map(merged, teams), *[()] * (len(self.node) - self.count)]
