"""Algorithms on trees: binomial ones, which send whole vectors, and binary ones, which send one segment after another.

In both, ranks are counted from the root, which is 0.

In a binomial tree, the number of ranks that have a message doubles with each step. The subtree of the rank with number
v has the ranks from v up to, but not including, v plus its lowest bit. So it is a run of ranks, and its blocks are one
run, or two if the run goes past the last rank.

In a binary tree, the root stands above the tree of the other ranks. They are numbered in order: each rank lies between
the ranks of its left subtree and those of its right subtree. The odd ranks are the leaves. Above them are the ranks
with one factor of two, and so on::

        0───────8
            ┌───┴────┐
            4       12
          ┌─┴─┐    ┌─┴──┐
          2   6   10    │
         ┌┴┐ ┌┴┐ ┌─┴┐   │
         1 3 5 7 9 11  13

So every rank can compute its neighbours from its own number, and a reduction combines the ranks in their order.

In one binary tree, half of the ranks only receive, and the other half sends everything twice. In two trees, each for
one half of the vector, the inner ranks of each tree are leaves of the other. So each rank sends as much as it receives,
and its links work all the time, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mpicoll.algorithms.algorithm import Algorithm

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, SCRATCH, Action, Blocks, Copy, Pipeline, Place, Recv, RecvReduce, Send, Space, Stage, Steps, around,
    one, per_rank, run, segments,
)  # fmt: skip


def binomial_bcast(at: Place, blocks: Blocks = (range(1),)) -> Steps:
    """The root sends to the rank that is half of the ranks away. Then both send to ranks a quarter away, and so on.

    Cost: log2(p) (a + n b)
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    if at.shifted:
        yield (Recv(parent(at), blocks, OUTPUT),)
    for child in reversed([*children(at)]):
        yield (Send(child, blocks, OUTPUT),)


def binomial_reduce(at: Place, into: Space | None = None) -> Steps:
    """A binomial bcast in reverse: half of the ranks send to the rest and are done, then half of the rest, and so on.

    Cost: log2(p) (a + n b + n g)
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    into, mine = into or _result(at), INPUT
    for child in children(at):
        yield (RecvReduce(child, one(0), mine, into, mine_first=True),)
        mine = into
    if at.shifted:
        yield (Send(parent(at), one(0), mine),)


def binomial_allreduce(at: Place) -> Steps:
    """A binomial reduce to rank 0, then a binomial bcast of the result.

    Cost: log2(p) (2 a + 2 n b + n g)
    Source: Chan and others, Collective communication: theory, practice, and experience, Concurrency Comput. 19 (2007)
    """
    yield from binomial_reduce(at, OUTPUT)
    yield from binomial_bcast(at)


def binomial_gather(at: Place, into: Space | None = None) -> Steps:
    """Each rank sends all the blocks of its subtree to the rank above it.

    Cost: log2(p) a + (p-1)/p n b
    Source: Chan and others, Collective communication: theory, practice, and experience, Concurrency Comput. 19 (2007)
    """
    into, below = into or _result(at), [*children(at)]
    if below:
        taken = (Recv(child, _blocks(at._replace(rank=child)), into) for child in below)
        yield (Copy(one(at.rank), INPUT, into), *taken)
    if at.shifted:
        yield (Send(parent(at), _blocks(at), into if below else INPUT),)


def binomial_scatter(at: Place) -> Steps:
    """Each rank receives all the blocks of its subtree, and sends the ranks below it theirs, the largest subtree first.

    Cost: log2(p) a + (p-1)/p n b
    Source: Chan and others, Collective communication: theory, practice, and experience, Concurrency Comput. 19 (2007)
    """
    below = [*children(at)]
    if at.shifted:
        yield (Recv(parent(at), _blocks(at), SCRATCH if below else OUTPUT),)
    from_ = SCRATCH if at.shifted else INPUT
    for child in reversed(below):
        yield (Send(child, _blocks(at._replace(rank=child)), from_),)
    if below:
        yield (Copy(one(at.rank), from_, OUTPUT),)


def binomial_allgather(at: Place) -> Steps:
    """A binomial gather to rank 0, then a binomial bcast of all blocks.

    Cost: 2 log2(p) a + ((p-1)/p + log2(p)) n b
    Source: Chan and others, Collective communication: theory, practice, and experience, Concurrency Comput. 19 (2007)
    """
    yield from binomial_gather(at, OUTPUT)
    yield from binomial_bcast(at, run(0, at.size))


def scatter_allgather_bcast(at: Place) -> Steps:
    """A binomial scatter of one block for each rank, then a ring all-gather of the blocks that a rank does not have.

    Cost: (log2(p) + p-1) a + 2(p-1)/p n b
    Source: Barnett and others, Interprocessor collective communication library (InterCom), Scalable High-Performance
      Computing Conference (1994)"""
    me, size = at.shifted, at.size
    after, before = at._replace(rank=at.actual(me + 1)), at.actual(me - 1)
    if me:
        yield (Recv(parent(at), (_subtree(at),), OUTPUT),)
    for child in reversed([*children(at)]):
        yield (Send(child, (_subtree(at._replace(rank=child)),), OUTPUT),)
    for step in range(size - 1):
        sent, taken = ((me - step - k) % size for k in (0, 1))
        actions: list[Action] = []
        if sent not in _subtree(after):
            actions.append(Send(after.rank, one(sent), OUTPUT))
        if taken not in _subtree(at):
            actions.append(Recv(before, one(taken), OUTPUT))
        if actions:
            yield tuple(actions)


def _result(at: Place) -> Space:
    """Where the rank collects what the root gets."""
    return SCRATCH if at.shifted else OUTPUT


def parent(at: Place) -> int:
    """The rank above this one: its distance from the root without the lowest bit."""
    return at.actual(at.shifted & (at.shifted - 1))


def children(at: Place) -> Iterator[int]:
    """The ranks directly below this one, the smallest subtree first."""
    bit = 1
    while bit < at.size and not at.shifted & bit:
        if at.shifted + bit < at.size:
            yield at.actual(at.shifted + bit)
        bit <<= 1


def _subtree(at: Place) -> range:
    """This rank and all ranks below it, counted from the root."""
    me = at.shifted
    return range(me, min(me + (me & -me), at.size) if me else at.size)


def _blocks(at: Place) -> Blocks:
    """The blocks of this rank and of all ranks below it."""
    return around(at.rank, len(_subtree(at)), at.size)


def binary_bcast(at: Place) -> Steps:
    """Each rank passes every segment that it receives on to the two ranks below it.

    Cost: 2(log2(p)+s-1)(a + n/s b)
    Source: Sanders and others, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
      35 (2009), under the name pipelined binary tree"""
    return Pipeline(_tree(at).bcast(), at.segments)


def binary_reduce(at: Place) -> Steps:
    """Each rank adds its own to every segment that it receives from the two ranks below it, and passes the sum up.

    Cost: 2(log2(p)+s-1)(a + n/s b + n/s g)
    Source: Sanders and others, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
      35 (2009), under the name pipelined binary tree"""
    return Pipeline(_tree(at).reduce(_result(at)), at.segments)


def binary_allreduce(at: Place) -> Steps:
    """A reduce up the tree, then a bcast down the same tree. Some segments go down while others still go up.

    Cost: 4(log2(p)+s-1)(a + n/s b) + 2(log2(p)+s-1) n/s g
    Source: Sanders and others, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
      35 (2009), on its pipelined binary trees"""
    return Pipeline(_tree(at).allreduce(), at.segments)


@dataclass(frozen=True)
class Tree:
    """The tree of ``size`` ranks, as the rank with number ``node`` sees it. ``rank`` maps numbers to ranks.

    ``first`` is the number of the block that is the first segment."""

    size: int
    node: int
    rank: Callable[[int], int]
    first: int = 0

    def bcast(self, start: int = 0) -> list[Stage]:
        """The stages of a bcast that begins at time ``start``."""
        start += self._level(0) - 1
        stages = []
        if self.node:
            take = Recv(self.rank(self._parent(self.node)), one(self.first), OUTPUT)
            stages.append(Stage(start - self._level(self.node), take))
        for child in self._children():
            pass_on = Send(self.rank(child), one(self.first), OUTPUT)
            stages.append(Stage(start - self._level(child), pass_on))
        return stages

    def reduce(self, into: Space) -> list[Stage]:
        """The stages of a reduce that begins at time 0."""
        stages = []
        mine: Space = INPUT
        for child in self._children():
            add = RecvReduce(self.rank(child), one(self.first), mine, into, mine_first=self.node < child)
            stages.append(Stage(self._rises(child), add))
            mine = into
        if self.node:
            pass_on = Send(self.rank(self._parent(self.node)), one(self.first), mine)
            stages.append(Stage(self._rises(self.node), pass_on))
        return stages

    def allreduce(self) -> list[Stage]:
        """The stages of a reduce, and of a bcast that sends each segment as soon as the root has it."""
        return [*self.reduce(OUTPUT), *self.bcast(2 * self._level(0))]

    def _level(self, node: int) -> int:
        """The height of a node, 0 for a leaf."""
        return ((node & -node) or 1 << (self.size - 1).bit_length()).bit_length() - 1

    def _rises(self, node: int) -> int:
        """When a node sends its first segment up: later than its children, and a right child later than a left one."""
        parent = self._parent(node)
        return 2 * self._level(parent) - (1 if parent < node else 2)

    def _parent(self, node: int) -> int:
        low = node & -node
        above = (node - low) | (low << 1)
        return above if above < self.size else node - low

    def _children(self) -> list[int]:
        """The left child, if there is one, and the right child: the highest node there whose number exists."""
        reach = 1 << self._level(self.node) >> 1
        children = [self.node - reach] if reach and self.node else []
        while reach and self.node + reach >= self.size:
            reach >>= 1
        return [*children, self.node + reach] if reach else children


def _tree(at: Place) -> Tree:
    return Tree(at.size, at.shifted, at.actual)


def halves(at: Place) -> int:
    """The number of blocks: for each tree, as many as the call chooses for the vector's length."""
    return 2 * at.segments


def double_bcast(at: Place) -> Steps:
    """The root sends each half of the vector down one of the two trees.

    Cost: 2(log2(p)+s-1)(a + n/(2s) b), with s segments for each tree
    Source: Sanders and others, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
      35 (2009)"""
    return Pipeline([stage for tree in _trees(at) for stage in tree.bcast()], at.segments)


def double_allreduce(at: Place) -> Steps:
    """Each half of the vector is reduced up one of the two trees and sent back down.

    Cost: 4(log2(p)+s-1)(a + n/(2s) b) + 2(log2(p)+s-1) n/(2s) g, with s segments for each tree
    Source: Sanders and others, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
      35 (2009)"""
    return Pipeline([stage for tree in _trees(at) for stage in tree.allreduce()], at.segments)


def _trees(at: Place) -> tuple[Tree, Tree]:
    """The second tree has odd numbers where the first has even ones. It is the first, mirrored or shifted by one."""
    others, me, half = at.size - 1, at.shifted, at.segments
    first = Tree(at.size, me, at.actual)
    if at.size % 2:
        return first, Tree(at.size, -me % at.size, lambda node: at.actual(-node), half)
    shifted = (me - 2) % others + 1 if me else 0
    return first, Tree(at.size, shifted, lambda node: at.actual(node % others + 1 if node else 0), half)


ALGORITHMS = (
    Algorithm("bcast", "binomial_tree", binomial_bcast),
    Algorithm("bcast", "binary_tree", binary_bcast, segments, segment=1 << 18),
    Algorithm("bcast", "scatter_allgather", scatter_allgather_bcast, per_rank),
    Algorithm("bcast", "double_binary_tree", double_bcast, halves, segment=1 << 18),
    Algorithm("reduce", "binomial_tree", binomial_reduce),
    Algorithm("reduce", "binary_tree", binary_reduce, segments, segment=1 << 18),
    Algorithm("allreduce", "binomial_tree", binomial_allreduce),
    Algorithm("allreduce", "binary_tree", binary_allreduce, segments, segment=1 << 18),
    Algorithm("allreduce", "double_binary_tree", double_allreduce, halves, segment=1 << 18),
    Algorithm("gather", "binomial_tree", binomial_gather, uneven=True),
    Algorithm("allgather", "tree", binomial_allgather, uneven=True),
    Algorithm("scatter", "binomial_tree", binomial_scatter, uneven=True),
)
