"""Algorithms on a binary tree. The segments of a vector follow each other through the tree.

Ranks are counted from the root, which is 0. The root stands above the tree of the other ranks. They are numbered in
order: each rank lies between the ranks of its left subtree and those of its right subtree. The odd ranks are the
leaves. Above them are the ranks with one factor of two, and so on::

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
and its links work all the time, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpicoll.algorithms.steps import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Pipeline,
    Place,
    Recv,
    RecvReduce,
    Send,
    Space,
    Stage,
    Steps,
    one,
)


def bcast(at: Place) -> Steps:
    """Each rank passes every segment that it receives on to the two ranks below it.

    Cost: 2(log2(p)+s-1)(a + n/s b)
    Source: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
      Parallel Computing 35 (2009), under the name pipelined binary tree
    """
    return Pipeline(_tree(at).bcast(), at.segments)


def reduce(at: Place) -> Steps:
    """Each rank adds its own to every segment that it receives from the two ranks below it, and passes the sum up.

    Cost: 2(log2(p)+s-1)(a + n/s b + n/s g)
    Source: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
      Parallel Computing 35 (2009), under the name pipelined binary tree
    """
    return Pipeline(_tree(at).reduce(SCRATCH if at.shifted else OUTPUT), at.segments)


def allreduce(at: Place) -> Steps:
    """A reduce up the tree, then a bcast down the same tree. Some segments go down while others still go up.

    Cost: 4(log2(p)+s-1)(a + n/s b) + 2(log2(p)+s-1) n/s g
    Source: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
      Parallel Computing 35 (2009), on its pipelined binary trees
    """
    return Pipeline(_tree(at).allreduce(), at.segments)


@dataclass(frozen=True)
class Tree:
    """The tree of ``size`` ranks, as the rank with number ``node`` sees it. ``rank`` maps numbers to ranks.

    ``first`` is the number of the block that is the first segment.
    """

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
    Source: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
      Parallel Computing 35 (2009)
    """
    return Pipeline([stage for tree in _trees(at) for stage in tree.bcast()], at.segments)


def double_allreduce(at: Place) -> Steps:
    """Each half of the vector is reduced up one of the two trees and sent back down.

    Cost: 4(log2(p)+s-1)(a + n/(2s) b) + 2(log2(p)+s-1) n/(2s) g, with s segments for each tree
    Source: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
      Parallel Computing 35 (2009)
    """
    return Pipeline([stage for tree in _trees(at) for stage in tree.allreduce()], at.segments)


def _trees(at: Place) -> tuple[Tree, Tree]:
    """The second tree has odd numbers where the first has even ones. It is the first, mirrored or shifted by one."""
    others, me, half = at.size - 1, at.shifted, at.segments
    first = Tree(at.size, me, at.actual)
    if at.size % 2:
        return first, Tree(at.size, -me % at.size, lambda node: at.actual(-node), half)
    shifted = (me - 2) % others + 1 if me else 0
    return first, Tree(at.size, shifted, lambda node: at.actual(node % others + 1 if node else 0), half)
