"""What each collective means: who gives what, who holds what afterwards, and how its bandwidth is counted.

A rank's vector is a sequence of blocks. ``has`` and ``wants`` say which blocks a rank holds before and after, and
``source`` where a block of a result comes from. ``outcome`` reads those three, for blocks of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["COLLECTIVES", "Collective", "canonical"]

Block = TypeVar("Block")
Vector = Sequence[Block]
Fold = Callable[[Sequence[Block]], Block]
"""Combines one block of each rank, given in rank order, into one."""


@dataclass(frozen=True)
class Collective:
    """One collective. ``gives`` and ``gets`` are the blocks of a rank's input and output, "1" or "p" (one a rank).

    ``bus_factor(p)`` turns algorithm bandwidth into bus bandwidth, as nccl-tests does: the share of the vector
    that must cross the slowest link of ``p`` ranks, whatever the algorithm.
    """

    name: str
    torch: str | None
    gives: str
    gets: str
    rooted: bool
    reduces: bool
    bus_factor: Callable[[int], float]

    def has(self, rank: int, size: int, root: int, blocks: int) -> range:
        """Those of the vector's ``blocks`` that the rank gives."""
        match self.name:
            case "gather" | "allgather":
                return range(rank, rank + 1)
            case "bcast" | "scatter":
                return range(blocks if rank == root else 0)
            case "barrier":
                return range(0)
            case _:
                return range(blocks)

    def wants(self, rank: int, size: int, root: int, blocks: int) -> range:
        """Those of the vector's ``blocks`` that the rank ends with; none where it is left as it was."""
        match self.name:
            case "scatter" | "reduce_scatter":
                return range(rank, rank + 1)
            case "reduce" | "gather":
                return range(blocks if rank == root else 0)
            case "exscan":
                return range(blocks if rank else 0)
            case "barrier":
                return range(0)
            case _:
                return range(blocks)

    def source(self, rank: int, size: int, root: int, block: int) -> tuple[range, int]:
        """The ranks whose contributions make up ``block`` of the rank's result, and which of their blocks it is."""
        match self.name:
            case "bcast" | "scatter":
                return range(root, root + 1), block
            case "gather" | "allgather":
                return range(block, block + 1), block
            case "alltoall":
                return range(block, block + 1), rank
            case "scan":
                return range(rank + 1), block
            case "exscan":
                return range(rank), block
            case _:
                return range(size), block

    def outcome(self, inputs: Sequence[Vector[Block]], root: int, fold: Fold[Block]) -> list[list[Block] | None]:
        """Each rank's vector after the collective, None where it is left as it was."""
        size = len(inputs)
        blocks = len(inputs[root]) if self.gets == self.gives == "1" else size
        first = [self.has(r, size, root, blocks).start for r in range(size)]

        def after(rank: int, block: int) -> Block:
            ranks, which = self.source(rank, size, root, block)
            contributions = [inputs[r][which - first[r]] for r in ranks]
            return fold(contributions) if self.reduces else contributions[0]

        wanted = [self.wants(r, size, root, blocks) for r in range(size)]
        return [[after(r, b) for b in wanted[r]] if wanted[r] else None for r in range(size)]


def _one(p: int) -> float:
    return 1.0


def _others(p: int) -> float:
    return (p - 1) / p


def _twice_others(p: int) -> float:
    return 2 * (p - 1) / p


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("bcast", "broadcast", "1", "1", True, False, _one),
        Collective("reduce", "reduce", "1", "1", True, True, _one),
        Collective("allreduce", "all_reduce", "1", "1", False, True, _twice_others),
        Collective("gather", "gather", "1", "p", True, False, _others),
        Collective("allgather", "all_gather", "1", "p", False, False, _others),
        Collective("scatter", "scatter", "p", "1", True, False, _others),
        Collective("reduce_scatter", "reduce_scatter", "p", "1", False, True, _others),
        Collective("alltoall", "all_to_all", "p", "p", False, False, _others),
        Collective("scan", None, "1", "1", False, True, _one),
        Collective("exscan", None, "1", "1", False, True, _one),
        Collective("barrier", "barrier", "1", "1", False, False, _one),
    )
}

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
