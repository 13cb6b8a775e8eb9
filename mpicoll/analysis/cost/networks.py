"""Networks with links: which links a message takes between two units of a level, such as two nodes of a cluster.

Units are numbered from 0. A link carries messages one way, so that a cable is two links. Each network has a method
``path``. It takes the units and the target's port of each message (three arrays of shape (messages,)), and gives the
numbers of the links in the order in which a message takes them, of shape (messages, links). A message that has no link
in some column has -1 there. A link has the same column in every path where the network allows it, because the
simulation looks at one column after the other. ``hop`` is the time in seconds that each link adds to the latency.
``most`` is the number of units that the network can join, or None for any number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FatTree:
    """Switches in stages, from the units up. A switch of stage s has ``units[s]`` units below it and ``uplinks[s]``
    links to the switches above, and as many back. Several switches that share their units, such as a pod, count as one.

    A message goes up only as far as it must. The port of its target chooses the link at each stage, on the way up and
    on the way down (d-mod-k: G. Rodriguez and others, Oblivious routing schemes in extended generalized fat tree
    networks, CLUSTER 2009).
    """

    kind: str = field(default="fat-tree", init=False)
    units: tuple[int, ...]
    uplinks: tuple[int, ...]
    hop: float = 0.0
    most: ClassVar[None] = None

    def path(self, source: Ints, target: Ints, port: Ints) -> Ints:
        up: list[Ints] = []
        down: list[Ints] = []
        for stage, (units, uplinks) in enumerate(zip(self.units, self.uplinks, strict=True)):
            a, b = source // units, target // units
            for column, switch, way in ((up, a, 0), (down, b, 1)):
                link = ((switch * uplinks + port % uplinks) * len(self.units) + stage) * 2 + way
                column.append(np.where(a == b, -1, link))
        return np.stack([*up, *reversed(down)], axis=-1)


@dataclass(frozen=True, kw_only=True)
class Dragonfly:
    """Groups of ``units`` units. From each group ``links`` links lead to each other group, and within a group there is
    a way for all.

    A message takes one link, by the shortest way (minimal routing). The port of its target chooses between the links of
    two groups. J. Kim and others, Technology-driven, highly-scalable dragonfly topology, ISCA 2008.
    """

    kind: str = field(default="dragonfly", init=False)
    units: int
    links: int
    hop: float = 0.0
    most: ClassVar[None] = None

    def path(self, source: Ints, target: Ints, port: Ints) -> Ints:
        a, b = source // self.units, target // self.units
        groups = max(a.max(initial=0), b.max(initial=0)) + 1
        link = (a * groups + b) * self.links + port % self.links
        return np.where(a == b, -1, link)[:, None]


@dataclass(frozen=True, kw_only=True)
class Torus:
    """A grid of ``dims`` units, closed to a ring in each dimension. Each unit has a link to the next unit and a link to
    the one before in each dimension. Units are numbered as the ranks of a Cartesian grid in MPI: along the last
    dimension first.

    A message goes along one dimension after the other, each time by the shorter way (dimension-ordered routing). Where
    both ways are equally long, it goes forward from even coordinates and backward from odd ones.
    """

    kind: str = field(default="torus", init=False)
    dims: tuple[int, ...]
    hop: float = 0.0

    @property
    def most(self) -> int:
        return prod(self.dims)

    def path(self, source: Ints, target: Ints, port: Ints) -> Ints:
        at, to = [*np.unravel_index(source, self.dims)], np.unravel_index(target, self.dims)
        columns = []
        for d, n in enumerate(self.dims):
            ahead = (to[d] - at[d]) % n
            forward = (2 * ahead < n) | ((2 * ahead == n) & (at[d] % 2 == 0))
            for _ in range(n // 2):
                link = (np.ravel_multi_index(tuple(at), self.dims) * len(self.dims) + d) * 2 + forward
                moves = at[d] != to[d]
                columns.append(np.where(moves, link, -1))
                at[d] = np.where(moves, (at[d] + np.where(forward, 1, -1)) % n, at[d])
        return np.stack(columns, axis=-1)


Network = FatTree | Dragonfly | Torus
NETWORKS = (FatTree, Dragonfly, Torus)
