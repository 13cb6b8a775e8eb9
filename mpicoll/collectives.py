"""What each collective means: who gives what, who holds what afterwards, and how its bandwidth is counted.

A rank's vector is a sequence of blocks. ``outcome`` maps the vectors that all ranks give to the vectors that they
hold afterwards, for blocks of any type: arrays in a test, symbols in a proof.
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

    def outcome(self, inputs: Sequence[Vector[Block]], root: int, fold: Fold[Block]) -> list[list[Block] | None]:
        """Each rank's vector after the collective, None where it is left as it was."""
        ranks = range(len(inputs))

        def folded(those: Sequence[Vector[Block]]) -> list[Block]:
            return [fold(blocks) for blocks in zip(*those, strict=True)]

        match self.name:
            case "bcast":
                return [list(inputs[root]) for _ in ranks]
            case "reduce":
                return [folded(inputs) if r == root else None for r in ranks]
            case "allreduce":
                return [folded(inputs) for _ in ranks]
            case "gather":
                return [[b for x in inputs for b in x] if r == root else None for r in ranks]
            case "allgather":
                return [[b for x in inputs for b in x] for _ in ranks]
            case "scatter":
                return [[inputs[root][r]] for r in ranks]
            case "reduce_scatter":
                return [[fold([x[r] for x in inputs])] for r in ranks]
            case "alltoall":
                return [[x[r] for x in inputs] for r in ranks]
            case "scan":
                return [folded(inputs[: r + 1]) for r in ranks]
            case "exscan":
                return [folded(inputs[:r]) if r else None for r in ranks]
            case _:
                return [None for _ in ranks]


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
