"""Two binary trees, each for one half of the vector. A rank has other ranks below it in at most one of the trees.

In one binary tree, half of the ranks only receive, and the other half sends everything twice. Here the inner ranks of
each tree are leaves of the other. So each rank sends as much as it receives, and its links work all the time, in both
directions.
"""

from __future__ import annotations

from mpicoll.algorithms.binary import Tree
from mpicoll.algorithms.pipeline import Pipeline
from mpicoll.algorithms.steps import Place, Steps


def halves(at: Place) -> int:
    """The number of blocks: for each tree, as many as the call chooses for the vector's length."""
    return 2 * at.segments


def bcast(at: Place) -> Steps:
    """The root sends each half of the vector down one of the two trees.

    Cost: 2(log2(p)+s-1)(a + n/(2s) b), with s segments for each tree
    Source: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
      Parallel Computing 35 (2009)
    """
    return Pipeline([stage for tree in _trees(at) for stage in tree.bcast()], at.segments)


def allreduce(at: Place) -> Steps:
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
