"""What is measured: a collective on blocks of one length, in one placement, and the sizes of its buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpicoll.algorithms.collectives import COLLECTIVES, Collective
from mpicoll.arrays.dtypes import Dtype, Reduction, reduction

Placement = Literal["out", "in"]
"""Out of place, or in place."""

PLACEMENTS: dict[str, tuple[Placement, ...]] = dict.fromkeys(COLLECTIVES, ("out", "in")) | {
    "bcast": ("in",),
    "reduce": ("in", "out"),
    "allreduce": ("in", "out"),
    "alltoall": ("out",),
    "barrier": ("out",),
}
"""The placements that each collective is measured in. The first is the usual one: percentiles, ratios and pictures are
of it. It is in place where torch's own collective is, so that every backend can run it."""


def elements(collective: Collective, size: int, dtype: Dtype, ranks: int) -> int:
    """Elements of one block if the largest buffer has ``size`` bytes, which is how nccl-tests counts.

    Where a rank gives or gets a block for each rank, the largest buffer holds all of these blocks. The number is
    rounded down, but a block has at least one element.
    """
    if not collective.moves:
        return 0
    blocks = ranks if collective.by_rank else 1
    return max(1, size // (blocks * dtype.itemsize))


@dataclass(frozen=True)
class Case:
    """One measurement: a collective on blocks of ``count`` elements in one placement, seen from one rank.

    So many ranks are ``sharing`` a GPU."""

    collective: Collective
    count: int
    dtype: Dtype
    op: str
    root: int
    rank: int
    ranks: int
    placement: Placement
    device: str = "cpu"
    sharing: int = 1

    @property
    def name(self) -> str:
        return self.collective.name

    @property
    def in_place(self) -> bool:
        return self.placement == "in"

    @property
    def at_root(self) -> bool:
        return self.rank == self.root

    @property
    def reduction(self) -> Reduction | None:
        return reduction(self.op, self.dtype, self.name) if self.collective.reduces else None

    @property
    def given_blocks(self) -> int:
        """Blocks of the input."""
        return self.collective.given_blocks(self.ranks)

    @property
    def gotten_blocks(self) -> int:
        """Blocks of the result."""
        return self.collective.gotten_blocks(self.ranks)

    @property
    def has_input(self) -> bool:
        """Whether this rank passes an input buffer. In a scatter only the root does."""
        return self.name == "bcast" or self.collective.gives_at(self.rank, self.root)

    @property
    def has_output(self) -> bool:
        """Whether this rank gets a result. In a gather and in a reduce only the root does."""
        return self.collective.gets_at(self.rank, self.root)

    @property
    def block_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """The size of the largest buffer. The table shows it, and bandwidths are computed from it."""
        return self.block_bytes * max(self.given_blocks, self.gotten_blocks)
