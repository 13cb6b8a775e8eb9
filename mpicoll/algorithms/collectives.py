"""What each collective means: who gives what, who holds what afterwards, and how its bandwidth is counted.

A rank's vector is a sequence of blocks. ``has`` and ``wants`` say which blocks a rank holds before and after, and
``source`` where a block of a result comes from. ``outcome`` reads those three, for blocks of any type.

All of this follows from a line of the table at the end. A new collective is a new line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

Block = TypeVar("Block")
Vector = Sequence[Block]
Reduce = Callable[[Sequence[Block]], Block]
"""Combines one block of each rank, given in rank order, into one."""
Extent = Literal["0", "1", "p"]
"""How many blocks a rank gives or gets: none, one (of any length), or one for each rank."""


@dataclass(frozen=True)
class Collective:
    """One collective.

    ``gives`` and ``gets`` are the numbers of blocks in a rank's input and output. ``root`` says whether only the root
    gives (``"gives"``) or only the root gets (``"gets"``); it is None where there is no root. ``prefix`` says whether
    rank r gets the reduction over ranks 0 to r (``inclusive``) or 0 to r - 1 (``exclusive``); None means all ranks.

    ``crosses`` is how often the parts of the other ranks must cross a link; 0 where the whole vector does once. Where
    MPI has no such collective (``mpi``), neither an MPI library nor the kernel carries it out, but a schedule."""

    name: str
    torch: str | None
    gives: Extent
    gets: Extent
    root: Literal["gives", "gets"] | None
    reduces: bool
    crosses: int
    prefix: Literal["inclusive", "exclusive"] | None = None
    mpi: bool = True

    def bus_factor(self, size: int) -> float:
        """What turns algorithm bandwidth into bus bandwidth, as nccl-tests does: the share of the vector that must
        cross the slowest link of ``size`` ranks, whatever the algorithm."""
        return self.crosses * (size - 1) / size if self.crosses else 1.0

    @cached_property
    def rooted(self) -> bool:
        """Whether one rank, the root, gives or gets what the others do not."""
        return self.root is not None

    @cached_property
    def moves(self) -> bool:
        """Whether ranks have arrays in the call."""
        return self.gives != "0"

    @cached_property
    def elementwise(self) -> bool:
        """Whether input and output have the same number of elements, and a rank's output may overwrite its input."""
        return self.gives == self.gets == "1"

    @cached_property
    def in_x(self) -> bool:
        """Whether a rank has one array, which the root reads and the others get the result in, as in a bcast."""
        return self.elementwise and self.root == "gives"

    @cached_property
    def by_rank(self) -> bool:
        """Whether the vector has exactly one block for each rank."""
        return "p" in (self.gives, self.gets)

    @cached_property
    def gathers(self) -> bool:
        """Whether the result is the ranks' inputs, one after another."""
        return (self.gives, self.gets) == ("1", "p")

    @cached_property
    def scatters(self) -> bool:
        """Whether rank r's result is block r of the vector, or of its reduction."""
        return (self.gives, self.gets) == ("p", "1")

    def extent_is_common(self, uneven: bool) -> bool:
        """Whether all ranks know how long a call is. In an alltoallv, each one knows only its own counts."""
        return not (uneven and self.gives == self.gets)

    def given_blocks(self, size: int) -> int:
        """The number of blocks in a rank's input."""
        return _blocks(self.gives, size)

    def gotten_blocks(self, size: int) -> int:
        """The number of blocks in a rank's output."""
        return _blocks(self.gets, size)

    def gives_at(self, rank: int, root: int) -> bool:
        """Whether the rank has an input."""
        return self.root != "gives" or rank == root

    def gets_at(self, rank: int, root: int) -> bool:
        """Whether the rank has an output."""
        return self.root != "gets" or rank == root

    def has(self, rank: int, size: int, root: int, blocks: int) -> range:
        """Which of the vector's ``blocks`` the rank has in its input."""
        if self.gathers:
            return range(rank, rank + 1)
        return range(blocks if self.moves and self.gives_at(rank, root) else 0)

    def wants(self, rank: int, size: int, root: int, blocks: int) -> range:
        """Which of the vector's ``blocks`` the rank has in its result; none where it gets no result."""
        if self.scatters:
            return range(rank, rank + 1)
        nothing_before = self.prefix == "exclusive" and rank == 0
        return range(blocks if self.moves and self.gets_at(rank, root) and not nothing_before else 0)

    def source(self, rank: int, size: int, root: int, block: int) -> tuple[range, int]:
        """Where ``block`` of the rank's result comes from: the ranks that contribute, and which of their blocks."""
        if self.root == "gives":
            return range(root, root + 1), block
        if self.gets == "p":
            return range(block, block + 1), rank if self.gives == "p" else block
        stop = {"inclusive": rank + 1, "exclusive": rank, None: size}[self.prefix]
        return range(stop), block

    def needs(self, rank: int, size: int, root: int) -> set[int]:
        """The ranks that contribute to this rank's result, and all where there are no arrays: it waits for them."""
        blocks = self.wants(rank, size, root, size if self.by_rank else 1)
        return {r for b in blocks for r in self.source(rank, size, root, b)[0]} if self.moves else {*range(size)}

    def outcome(self, inputs: Sequence[Vector[Block]], root: int, reduce: Reduce[Block]) -> list[list[Block] | None]:
        """Each rank's result, None where a rank gets none."""
        size = len(inputs)
        blocks = size if self.by_rank else len(inputs[root])
        first = [self.has(r, size, root, blocks).start for r in range(size)]

        def after(rank: int, block: int) -> Block:
            ranks, which = self.source(rank, size, root, block)
            contributions = [inputs[r][which - first[r]] for r in ranks]
            return reduce(contributions) if self.reduces else contributions[0]

        wanted = [self.wants(r, size, root, blocks) for r in range(size)]
        return [[after(r, b) for b in wanted[r]] if wanted[r] else None for r in range(size)]


def _blocks(extent: Extent, size: int) -> int:
    return size if extent == "p" else int(extent)


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("bcast", "broadcast", "1", "1", "gives", False, 0),
        Collective("reduce", "reduce", "1", "1", "gets", True, 0),
        Collective("allreduce", "all_reduce", "1", "1", None, True, 2),
        Collective("gather", "gather", "1", "p", "gets", False, 1),
        Collective("allgather", "all_gather", "1", "p", None, False, 1),
        Collective("scatter", "scatter", "p", "1", "gives", False, 1),
        Collective("reduce_scatter", "reduce_scatter", "p", "1", None, True, 1),
        Collective("alltoall", "all_to_all", "p", "p", None, False, 1),
        Collective("scan", None, "1", "1", None, True, 0, "inclusive"),
        Collective("exscan", None, "1", "1", None, True, 0, "exclusive"),
        Collective("barrier", "barrier", "0", "0", None, False, 0),
    )
}

METHODS = {f"{c.name}{v}": (c, v == "v") for c in COLLECTIVES.values() for v in ("", "v")}
"""The collective of a Communicator's method, and whether its blocks are uneven: ``allgatherv`` is ``allgather``."""

_SPELLINGS = {c.torch: c.name for c in COLLECTIVES.values() if c.torch} | {
    "all_gather_into_tensor": "allgather",
    "all_gather_single": "allgather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "alltoall",
}


def canonical(name: str) -> str | None:
    """MPI's name of the collective that ``name`` means in MPI's or torch's spelling; None if there is none."""
    return name if name in COLLECTIVES else _SPELLINGS.get(name)


def input_of(operation: str) -> str:
    """The name of the input of a Communicator's method: ``xs`` where the input has one block for each rank."""
    table = COLLECTIVES.get(operation.removesuffix("v"))
    return "xs" if table is not None and table.gives == "p" else "x"
