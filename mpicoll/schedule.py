"""The schedule: one algorithm as data, for one rank.

The vector of a collective is cut into blocks. A rank's schedule is a sequence of steps. The actions of one step may
proceed at once, in any order; the next step starts when all of them are done. A message from one rank to another meets
the receives of that rank in the order in which both schedules name them.

A rank has three spaces, each of which holds some blocks:

- ``INPUT`` what the rank gives; never written;
- ``OUTPUT`` what it ends with. In a call in place a block of INPUT and the same block of OUTPUT are one memory;
- ``SCRATCH`` whatever the schedule puts there.

Block b has the same size wherever it lies. (In an all-to-all the sizes may differ by pair of ranks: INPUT block b is
for rank b, OUTPUT block b from rank b.) A bcast is always in place: it has OUTPUT alone, full at the root.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = [
    "INPUT",
    "OUTPUT",
    "SCRATCH",
    "Action",
    "Blocks",
    "Copy",
    "Place",
    "Recv",
    "RecvReduce",
    "Schedule",
    "Send",
    "Space",
    "Step",
    "Steps",
    "merged",
    "one",
    "run",
]

Space = Literal["input", "output", "scratch"]
INPUT: Space = "input"
OUTPUT: Space = "output"
SCRATCH: Space = "scratch"

Blocks = tuple[range, ...]
"""Runs of blocks, none empty, each with step 1, in the order in which they travel. An empty tuple is a mere signal."""


class Send(NamedTuple):
    """Send these blocks to a rank."""

    peer: int
    blocks: Blocks
    from_: Space


class Recv(NamedTuple):
    """Take these blocks in from a rank."""

    peer: int
    blocks: Blocks
    into: Space


class RecvReduce(NamedTuple):
    """Take blocks in from a rank and combine them with ``mine``: into = mine op theirs, or theirs op mine."""

    peer: int
    blocks: Blocks
    mine: Space
    into: Space
    mine_first: bool


class Copy(NamedTuple):
    """Copy blocks from one space to another; ``to`` says to which blocks there, where they are not the same ones."""

    blocks: Blocks
    from_: Space
    into: Space
    to: Blocks | None = None


Action = Send | Recv | RecvReduce | Copy
Step = tuple[Action, ...]
Steps = Iterable[Step]


class Place(NamedTuple):
    """Where in a collective a schedule is for: this rank of so many, the root, and the segments that a vector is cut
    into where the algorithm pipelines it."""

    rank: int
    size: int
    root: int = 0
    segments: int = 1

    @property
    def shifted(self) -> int:
        """The rank counted from the root, which is 0 then."""
        return (self.rank - self.root) % self.size

    def actual(self, shifted: int) -> int:
        """The rank that is ``shifted`` after the root."""
        return (shifted + self.root) % self.size


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
    """Blocks ``start`` to ``stop``, none if that is empty."""
    return (range(start, stop),) if stop > start else ()


def merged(blocks: Iterable[int]) -> Blocks:
    """These blocks in ascending order, neighbours in one run."""
    runs: list[range] = []
    for b in sorted(blocks):
        if runs and runs[-1].stop == b:
            runs[-1] = range(runs[-1].start, b + 1)
        else:
            runs.append(range(b, b + 1))
    return tuple(runs)
