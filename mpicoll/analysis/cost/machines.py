"""A machine as the cost model sees it: its levels from the inside out, the networks that join them, and what the work
of a rank costs. Times are in seconds, rates in seconds per byte.

A network has links, and says which of them a message takes between two units of a level, such as two nodes of a
cluster. A link carries messages one way, so that a cable is two links. Each network has a method ``path``. It takes the
units, numbered from 0, and the target's port of each message (three arrays of shape (messages,)), and gives the numbers
of the links in the order in which a message takes them, of shape (messages, links), with -1 for none. A link has the
same column in every path where the network allows it, because the simulation looks at one column after the other.
``hop`` is the time in seconds that each link adds to the latency. ``most`` is the number of units that the network can
join, or None for any number."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpicoll.algorithms.steps import Nodes
from mpicoll.errors import ArgumentError

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FatTree:
    """Switches in stages, from the units up. A switch of stage s has ``units[s]`` units below it and ``uplinks[s]``
    links to the switches above, and as many back. Several switches that share their units, such as a pod, count as one.

    A message goes up only as far as it must. The port of its target chooses the link at each stage, on the way up and
    on the way down (d-mod-k: G. Rodriguez and others, Oblivious routing schemes in extended generalized fat tree
    networks, CLUSTER 2009)."""

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
    two groups. J. Kim and others, Technology-driven, highly-scalable dragonfly topology, ISCA 2008."""

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
    both ways are equally long, it goes forward from even coordinates and backward from odd ones."""

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
PLACEMENTS = ("block", "round-robin")

Rate = float | tuple[float, ...]
"""Seconds per byte: several if they depend on the cache that a vector fits into. The last one is for memory."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A level, such as a node or the whole system. docs/explanation/cost.md describes its fields.

    Two ranks talk at the innermost level that contains both. Below the innermost level, a unit is a rank. ``overlap``
    needs something else than the core of the rank to move messages. With a ``network``, a message has each link on its
    path to itself during n gap. With None, only ports are shared."""

    name: str
    ranks: int | None = None
    latency: float
    gap: Rate
    overhead: float
    ports: int
    overlap: bool = True
    network: Network | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine. ``source`` says where its figures come from. docs/explanation/cost.md describes the other fields. A
    message longer than ``eager`` bytes asks its receiver first, which answers when it has begun the step that receives
    it: this takes two more latencies. ``placement`` is one of PLACEMENTS."""

    name: str
    source: str
    levels: tuple[Level, ...]
    reduction: Rate
    copy: Rate
    reduction_overhead: float = 0.0
    copy_overhead: float = 0.0
    step: float = 0.0
    caches: tuple[int, ...] = ()
    eager: int | None = None
    cores: int | None = None
    placement: str = "block"

    @property
    def period(self) -> int:
        """The ranks of one unit below the outermost level. If they are placed in blocks, all units are alike."""
        return self.below(len(self.levels) - 1)

    @property
    def most(self) -> int | None:
        """How many ranks the machine holds. None means any number."""
        last = self.levels[-1]
        units = None if last.network is None else last.network.most
        return last.ranks if last.ranks is not None or units is None else units * self.period

    def nodes(self, size: int) -> Nodes:
        """The nodes of ``size`` ranks. They are the units of the level that is called node, or of the level below the
        outermost one. A machine of one level is a node."""
        if len(self.levels) == 1:
            return Nodes.one(size)
        level = next((i for i, level in enumerate(self.levels[:-1]) if level.name == "node"), len(self.levels) - 2)
        return Nodes.named((self.positions(size) // self.below(level + 1)).tolist())

    def holding(self, size: int, nodes: int) -> Machine:
        """The machine with ``size`` ranks on so many full nodes. Raises ArgumentError where that cannot be."""
        if len(self.levels) != 2:
            expected = "a machine of two levels, nodes and what joins them, as ethernet"
            raise ArgumentError("simulate", "--nodes", expected, self.name)
        if size % nodes:
            raise ArgumentError("simulate", "--nodes", f"a number that divides the {size} ranks", str(nodes))
        node = replace(self.levels[0], ranks=size // nodes)
        return replace(self, levels=(node, self.levels[1]))

    def positions(self, size: int) -> Ints:
        """The position of each rank, from the inside out. Raises ArgumentError if the machine holds fewer."""
        if self.most is not None and size > self.most:
            raise ArgumentError("simulate", "-n", f"at most the {self.most} ranks of {self.name}", str(size))
        left = np.arange(size)
        if self.placement == "block":
            return left
        found, units = np.zeros(size, np.int64), -(-size // self.period)
        for i in range(len(self.levels) - 1, 0, -1):
            found += left % units * self.below(i)
            left = left // units
            units = self.below(i) // self.below(i - 1)
        return found + left

    def crowded(self, size: int) -> Machine:
        """The machine as ``size`` ranks find it. Where ranks share cores, what a core does takes as many times longer
        as there are ranks for each core of the fullest unit. A core also moves the bytes of the innermost level."""
        inner, *outer = self.levels
        units = np.zeros(size, np.int64) if inner.ranks is None else self.positions(size) // inner.ranks
        longer = 1.0 if self.cores is None else max(1.0, float(np.bincount(units).max()) / self.cores)
        if longer == 1:
            return self

        def slower(rate: Rate) -> Rate:
            return tuple(longer * each for each in rate) if isinstance(rate, tuple) else longer * rate

        levels = (replace(inner, gap=slower(inner.gap)), *outer)
        costs = ("reduction", "copy", "reduction_overhead", "copy_overhead", "step")
        slow: dict[str, Any] = {name: slower(getattr(self, name)) for name in costs}
        return replace(self, levels=tuple(replace(each, overhead=longer * each.overhead) for each in levels), **slow)

    def level(self, a: Ints, b: Ints) -> Ints:
        """The number of the level at which positions ``a`` and ``b`` talk."""
        found = np.full(np.shape(a), len(self.levels) - 1)
        for i in range(len(self.levels) - 1, 0, -1):
            found[a // self.below(i) == b // self.below(i)] = i - 1
        return found

    def port(self, level: int, at: Ints, turn: Ints) -> Ints:
        """The port of the level that a position uses for the message number ``turn`` of a step."""
        below = self.below(level)
        ports = self.levels[level].ports
        if ports < below:
            return at // below * ports + at % below * ports // below
        mine = ports // below
        return at * mine + turn % mine

    def links(self, level: int, source: Ints, target: Ints, port: Ints) -> Ints:
        """The links of the level that messages between these positions take to this port, in their order: of shape
        (messages, links), with -1 where a path has no link."""
        network, whole = self.levels[level].network, self.levels[level].ranks
        if network is None:
            return np.empty((len(source), 0), np.int64)
        a, b = source // self.below(level), target // self.below(level)
        if whole is None:
            return network.path(a, b, port)
        units = whole // self.below(level)
        links = network.path(a % units, b % units, port)
        return np.where(links < 0, -1, links + (a // units)[:, None] * (links.max(initial=0) + 1))

    def below(self, level: int) -> int:
        """The ranks of one unit of the level inside this one. It is 1 for the innermost level."""
        ranks = self.levels[level - 1].ranks if level else 1
        assert ranks is not None
        return ranks

    def rate(self, rate: Rate, nbytes: float) -> float:
        """The rate for vectors of ``nbytes``, of several."""
        if not isinstance(rate, tuple):
            return rate
        return rate[sum(nbytes > most for most in self.caches)]

    def as_dict(self) -> dict[str, Any]:
        """The machine in the form that ``presets.from_dict`` reads."""
        return asdict(self)
