"""The schedule: one algorithm as data, for one rank.

The vector of a collective is cut into blocks. A rank's schedule is a sequence of steps. The actions of one step may
proceed at the same time, in any order. The next step starts when all of them are done. The messages between two ranks
are matched in order: the n-th send to a rank goes with the n-th receive from the sender.

A rank has three spaces, each of which holds some blocks:

- ``INPUT`` holds what the rank gives. It is never written.
- ``OUTPUT`` holds the rank's result. In a call in place, a block of INPUT and the same block of OUTPUT share memory.
- ``SCRATCH`` holds whatever the schedule puts there.

Block b has the same size in every space. An all-to-all is different, because the sizes may differ by pair of ranks:
INPUT block b is for rank b, and OUTPUT block b is from rank b. A bcast is always in place: it has OUTPUT alone, which
is full at the root.

In a pipeline, the segments of a vector follow each other through the ranks, one step apart. A rank's part in it is a
few stages. Each stage has a start, and handles segment s at the time start + s. A message is one stage on each of its
two ranks, with the same start. Each rank does everything for one time in one step. So ranks never wait for each other
in a circle, and each needs to know only its own neighbours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Space = Literal["input", "output", "scratch"]
INPUT: Space = "input"
OUTPUT: Space = "output"
SCRATCH: Space = "scratch"
SPACES = INPUT, OUTPUT, SCRATCH

Blocks = tuple[range, ...]
"""Runs of blocks in the order in which they are sent. No run is empty, and each has step 1. A message of no blocks is
a mere signal."""


class Send(NamedTuple):
    """Send these blocks to a rank."""

    peer: int
    blocks: Blocks
    from_: Space


class Recv(NamedTuple):
    """Receive these blocks from a rank."""

    peer: int
    blocks: Blocks
    into: Space


class RecvReduce(NamedTuple):
    """Receive blocks from a rank and combine them with ``mine``.

    ``mine_first`` says in which order: into = mine op theirs if it is true, else into = theirs op mine. Floating-point
    sums depend on the order. Where two ranks combine each other's blocks, one of them must have ``mine_first=True`` and
    the other one False, such as ``mine_first=rank < peer``. Then both get the same bits."""

    peer: int
    blocks: Blocks
    mine: Space
    into: Space
    mine_first: bool


class Copy(NamedTuple):
    """Copy blocks from one space to another. ``to`` names the blocks there where they are not the same ones."""

    blocks: Blocks
    from_: Space
    into: Space
    to: Blocks | None = None


Action = Send | Recv | RecvReduce | Copy
Step = tuple[Action, ...]
Steps = Iterable[Step]


@dataclass(frozen=True)
class Nodes:
    """Where the ranks are: ``of[rank]`` is the number of a rank's node. It is the same on all ranks. Nodes are numbered
    in the order of their lowest ranks."""

    of: tuple[int, ...]

    @classmethod
    def named(cls, names: Iterable[Hashable]) -> Nodes:
        """The nodes of ranks that give the same name on the same node, whatever it is."""
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(name, len(numbers)) for name in names))

    @classmethod
    def one(cls, size: int) -> Nodes:
        """One node that has all ranks."""
        return cls((0,) * size)

    @classmethod
    def block(cls, size: int, nodes: int) -> Nodes:
        """Ranks that fill one node after the other. The nodes have equal shares, as far as that is possible."""
        return cls.named(rank * nodes // size for rank in range(size))

    @property
    def size(self) -> int:
        return len(self.of)

    @property
    def alone(self) -> bool:
        return not any(self.of)

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, in ascending order."""
        found: list[list[int]] = [[] for _ in range(max(self.of, default=-1) + 1)]
        for rank, node in enumerate(self.of):
            found[node].append(rank)
        return tuple(map(tuple, found))


class Place(NamedTuple):
    """The place in a collective that a schedule is for: this rank, the number of ranks, and the root.

    ``segments`` is the number of segments into which a pipelined algorithm cuts the vector. ``nodes`` says where the
    ranks are, to an algorithm that goes by it. None means that one node has them all."""

    rank: int
    size: int
    root: int = 0
    segments: int = 1
    nodes: Nodes | None = None

    @property
    def shifted(self) -> int:
        """This rank's number if ranks are counted from the root: the root's own number is 0."""
        return (self.rank - self.root) % self.size

    def actual(self, shifted: int) -> int:
        """The rank whose number, counted from the root, is ``shifted``."""
        return (shifted + self.root) % self.size

    @property
    def by_node(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node."""
        return (tuple(range(self.size)),) if self.nodes is None else self.nodes.ranks


Cut = Callable[[Place], int]
"""The number of blocks that a vector is cut into."""


def whole(at: Place) -> int:
    """One block: the vector travels as it is."""
    return 1


def per_rank(at: Place) -> int:
    """One block for each rank."""
    return at.size


def power_of_two(at: Place) -> int:
    """One block for each rank of the largest power of two of ranks."""
    return 1 << (at.size.bit_length() - 1)


def segments(at: Place) -> int:
    """The number of blocks that the call chooses for the vector's length."""
    return at.segments


def segments_per_rank(at: Place) -> int:
    """The number of blocks: for each rank, as many as the call chooses for the vector's length."""
    return at.size * at.segments


@dataclass(frozen=True, slots=True)
class Schedule:
    """One rank's part in an algorithm: its steps over a vector of so many blocks."""

    collective: str
    algorithm: str
    blocks: int
    steps: tuple[Step, ...]


def one(block: int) -> Blocks:
    """A single block."""
    return (range(block, block + 1),)


def run(start: int, stop: int) -> Blocks:
    """Blocks ``start`` to ``stop``, without ``stop``; no run if there is no such block."""
    return (range(start, stop),) if stop > start else ()


def around(start: int, several: int, size: int) -> Blocks:
    """``several`` of ``size`` blocks, from ``start`` on, with block 0 after the last one."""
    stop = start + several
    return run(start, min(stop, size)) + run(0, stop - size)


def singly(blocks: Iterable[int]) -> Blocks:
    """These blocks, each as a run of its own."""
    return tuple(range(b, b + 1) for b in blocks)


def joined(runs: Iterable[range]) -> Blocks:
    """The same blocks in the same order, with neighbours joined into one run."""
    found: list[range] = []
    for r in runs:
        if found and found[-1].stop == r.start:
            found[-1] = range(found[-1].start, r.stop)
        else:
            found.append(r)
    return tuple(found)


def merged(blocks: Iterable[int]) -> Blocks:
    """These blocks in ascending order, with neighbours joined into one run."""
    return joined(singly(sorted(blocks)))


Message = Send | Recv | RecvReduce


class Stage(NamedTuple):
    """``action`` handles the first segment, which is its block, at time ``start``. Each further segment is the next
    block and follows at the next time."""

    start: int
    action: Message


class Pipeline:
    """The steps of some stages: one for each time at which any of the stages has a segment to handle."""

    def __init__(self, stages: Sequence[Stage], segments: int) -> None:
        self.stages, self.segments = stages, segments

    def __iter__(self) -> Iterator[Step]:
        steps: dict[int, list[Message]] = {}
        for start, action in self.stages:
            make, (peer, (block,), *others) = type(action)._make, action
            for s in range(self.segments):
                steps.setdefault(start + s, []).append(make((peer, one(block.start + s), *others)))
        yield from (tuple(steps[time]) for time in sorted(steps))
