"""Two-level algorithms. The ranks of a node work together first, so that a node sends and receives as little as it can.

Each is composed of algorithms that are there: some within each node, and some between the nodes. It does not matter
which ranks are on which node, and nodes may have different numbers of ranks.

The leaders of a node are its ranks that talk to other nodes. All nodes have the same number of them. A leader acts for
its team, which is some ranks of its node. The leaders with the same number, one of each node, form a group. In an
all-to-all every rank talks to other nodes, however many there are on each."""

from __future__ import annotations

from itertools import accumulate, chain, pairwise

from mpicoll.algorithms import bruck, direct, ring, trees
from mpicoll.algorithms.algorithm import Algorithm
from mpicoll.algorithms.composed import among, stages

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, SCRATCH, Blocks, Pipeline, Place, Recv, Send, Space, Steps, merged, one, run,
    segments, singly,
)  # fmt: skip


def allreduce(at: Place) -> Steps:
    """A ring reduce-scatter within each node leaves a slice of the vector with each leader. The leaders of a slice
    reduce it on a ring of the nodes. Then each node gathers the slices on a ring. A node sends and receives no more
    than 2(k-1)/k n bytes.

    Cost: 2(m+k-2) a + 2(p-1)/p n b + (p-1)/p n g
    Source: Bayatpour and others, Scalable reduction collectives with data partitioning-based multi-leader design, SC
      (2017)"""
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
    Source: Bayatpour and others, Scalable reduction collectives with data partitioning-based multi-leader design, SC
      (2017), on its all-reduce"""
    here = _Leaders(at)
    yield from among(at, here.node, ring.reduce_scatter, here.blocks_by_leader(), {OUTPUT: SCRATCH})
    yield from among(at, here.group, ring.reduce_scatter, here.blocks_by_team(), {INPUT: SCRATCH, OUTPUT: SCRATCH})
    yield from among(at, here.team, direct.scatter, [one(rank) for rank in here.team], {INPUT: SCRATCH})


def gather(at: Place) -> Steps:
    """Each leader takes in the blocks of its node, and sends them to the root in one message.

    Cost: (m+k-2) a + (p-1)/p n b
    Source: Träff and Rougier, Zero-copy, hierarchical gather is not possible with MPI datatypes and collectives,
      EuroMPI/ASIA (2014)"""
    nodes, node = _led(at)
    kept: Space = OUTPUT if at.rank == at.root else SCRATCH if len(node) > 1 else INPUT
    yield from among(at, node, direct.gather, [one(rank) for rank in node], {OUTPUT: kept})
    yield from among(at, [node[0] for node in nodes], direct.gather, [*map(merged, nodes)], {INPUT: kept})


def scatter(at: Place) -> Steps:
    """The root sends each leader the blocks of its node in one message, and the leader hands them out.

    Cost: (m+k-2) a + (p-1)/p n b
    Source: Träff and Rougier, Zero-copy, hierarchical gather is not possible with MPI datatypes and collectives,
      EuroMPI/ASIA (2014), on its gather, of which this is the reverse"""
    nodes, node = _led(at)
    kept: Space = INPUT if at.rank == at.root else SCRATCH if len(node) > 1 else OUTPUT
    yield from among(at, [node[0] for node in nodes], direct.scatter, [*map(merged, nodes)], {OUTPUT: kept})
    yield from among(at, node, direct.scatter, [one(rank) for rank in node], {INPUT: kept})


def allgather(at: Place) -> Steps:
    """Each leader takes in the blocks of its team. Each group of leaders gathers these on a ring. Then each node
    gathers what its leaders have, on a ring.

    Cost: (m+k-2) a + (p-1)/p n b
    Source: Kandalla and others, Designing multi-leader-based allgather algorithms for multi-core clusters, IPDPS (2009)
    """
    here = _Leaders(at)
    yield from among(at, here.team, direct.gather, [one(rank) for rank in here.team], {})
    yield from among(at, here.group, ring.allgather, here.blocks_by_team())
    yield from among(at, here.node, ring.allgather, here.blocks_by_leader())


def alltoall(at: Place) -> Steps:
    """Each rank sends all that it has for another node to one rank there, in one message. The ranks of a node take in
    the same number of these messages, or nearly so. Then they exchange their own blocks, and hand each other what came.

    Cost: (2m+k-3) a + ((k-1)/k + (m-1)/m) n b
    Source: Träff and Hunold, Decomposing MPI collectives for exploiting multi-lane communication, IEEE CLUSTER (2020),
      on nodes of the same size"""
    nodes, k = at.by_node, len(at.by_node)
    here = next(i for i, node in enumerate(nodes) if at.rank in node)
    node = nodes[here]
    me, m = node.index(at.rank), len(node)
    # A node deals out the ranks of the other nodes, those of the node before it first, to its own. What comes from the
    # q-th that this rank gets lies in SCRATCH from block q m on: a block for each rank of the node. So there are at
    # most m ceil((p-m)/m) blocks, which is less than p.
    ahead, others = 0, list[int]()
    for distance in range(1, k):
        target, source = nodes[(here + distance) % k], nodes[here - distance]
        dealt = ((i, rank) for i, rank in enumerate(source, len(others)) if i % m == me)
        yield (
            Send(target[(ahead + me) % len(target)], merged(target), INPUT),
            *(Recv(rank, _cut(i - me, merged(node)), SCRATCH) for i, rank in dealt),
        )
        ahead += len(target)
        others += source
    yield from among(at, node, direct.alltoall, [one(rank) for rank in node], {})
    departing = [singly(range(i, m * len(others[me::m]), m)) for i in range(m)]
    arriving = [singly(others[i::m]) for i in range(m)]
    yield from among(at, node, direct.alltoall, departing, {INPUT: SCRATCH}, arriving)


def bcast(at: Place) -> Steps:
    """The segments pass through the nodes on a chain, from leader to leader, and within each node down a binary tree.

    Cost: (k+2log2(m)+s-2)(a + n/s b)
    Source: Karonis and others, Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance, IPDPS (2000)"""
    nodes, node = _led(at)
    between = stages(at, [each[0] for each in nodes], ring.chain_bcast, {})
    within = stages(at, node, trees.binary_bcast, {}, start=nodes.index(node))
    return Pipeline([*between, *within], at.segments)


def reduce(at: Place) -> Steps:
    """The segments are reduced up a binary tree within each node, and on a chain through the leaders of all nodes.

    Cost: (k+2log2(m)+s-2)(a + n/s b + n/s g)
    Source: Karonis and others, Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance, IPDPS (2000)"""
    nodes, node = _led(at)
    kept: Space = OUTPUT if at.rank == at.root else SCRATCH
    within = stages(at, node, trees.binary_reduce, {OUTPUT: kept})
    levels = (max(map(len, at.by_node)) - 1).bit_length()
    given: Space = kept if len(node) > 1 else INPUT
    leaders = [each[0] for each in nodes]
    between = stages(at, leaders, ring.chain_reduce, {INPUT: given}, start=2 * levels)
    return Pipeline([*within, *between], at.segments)


def barrier(at: Place) -> Steps:
    """A dissemination barrier within each node, one between the nodes' first ranks, and one within each node again.

    Cost: (2log2(m) + log2(k)) a
    Source: Karonis and others, Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance, IPDPS (2000)"""
    nodes, node = _led(at)
    for ranks in (node, [each[0] for each in nodes], node):
        yield from among(at, ranks, bruck.dissemination_barrier, [])


def _cut(start: int, like: Blocks) -> Blocks:
    """As many blocks from ``start`` on, in runs as long as these."""
    ends = [*accumulate(map(len, like), initial=start)]
    return tuple(range(begin, end) for begin, end in pairwise(ends))


def _led(at: Place) -> tuple[list[list[int]], list[int]]:
    """The ranks of each node, and those of this rank's node: the leader first. The root leads its node, which comes
    first."""
    nodes = [sorted(node, key=lambda rank: rank != at.root) for node in at.by_node]
    nodes.sort(key=lambda node: node[0] != at.root)
    return nodes, next(node for node in nodes if at.rank in node)


class _Leaders:
    """Several leaders of each node, as a rank sees them: as many as the smallest node has ranks, so that in nodes of
    the same size every rank leads. The other ranks of a node are dealt out to its leaders."""

    def __init__(self, at: Place) -> None:
        self._nodes = at.by_node
        self.node = next(node for node in self._nodes if at.rank in node)  # the ranks of this rank's node
        self.count = min(map(len, self._nodes))
        self.number = self.node.index(at.rank) % self.count
        """The number of this rank's leader, among the leaders of the node."""
        self.team = self.node[self.number :: self.count]  # the leader, and the ranks for which it acts
        self.group = tuple(node[self.number] for node in self._nodes)  # the leaders with that number, of all nodes

    def blocks_by_team(self) -> list[Blocks]:
        """The blocks of the team of each leader in the group, if each rank has a block."""
        return [merged(node[self.number :: self.count]) for node in self._nodes]

    def blocks_by_leader(self) -> list[Blocks]:
        """For each rank of the node the blocks of all teams with its number, none if it does not lead."""
        teams = (chain(*(node[i :: self.count] for node in self._nodes)) for i in range(self.count))
        return [*map(merged, teams), *[()] * (len(self.node) - self.count)]


ALGORITHMS = (
    Algorithm("bcast", "two_level", bcast, segments, segment=60 << 10, by_node=True),
    Algorithm("reduce", "two_level", reduce, segments, segment=60 << 10, by_node=True),
    Algorithm("allreduce", "two_level", allreduce, slices, by_node=True),
    Algorithm("gather", "two_level", gather, uneven=True, by_node=True),
    Algorithm("allgather", "two_level", allgather, uneven=True, by_node=True),
    Algorithm("scatter", "two_level", scatter, uneven=True, by_node=True),
    Algorithm("reduce_scatter", "two_level", reduce_scatter, uneven=True, by_node=True),
    Algorithm("alltoall", "two_level", alltoall, by_node=True),
    Algorithm("barrier", "two_level", barrier, by_node=True),
)
