"""What a benchmark of each collective needs: the sizes of its buffers, and where its in-place form keeps its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpicoll.arrays.dtypes import Dtype, Reduction, reduction
from mpicoll.collectives import COLLECTIVES, Collective

__all__ = ["PLACEMENTS", "RULES", "Case", "Placement", "Rule", "elements"]

Placement = Literal["out", "in"]
PLACEMENTS: tuple[Placement, ...] = ("out", "in")
"""Out of place, and in place: the order of the table's columns."""


@dataclass(frozen=True)
class Rule:
    """The placements that a collective has. The first is the usual one, which percentiles and ratios speak of."""

    collective: Collective
    placements: tuple[Placement, ...]

    @property
    def name(self) -> str:
        return self.collective.name

    @property
    def sized(self) -> bool:
        """Whether it moves data at all."""
        return self.name != "barrier"


# In place where torch's own collective is, so that every backend has the usual placement.
_PLACEMENTS: dict[str, tuple[Placement, ...]] = {
    "bcast": ("in",),
    "reduce": ("in", "out"),
    "allreduce": ("in", "out"),
    "alltoall": ("out",),
    "barrier": ("out",),
}

RULES: dict[str, Rule] = {name: Rule(c, _PLACEMENTS.get(name, ("out", "in"))) for name, c in COLLECTIVES.items()}


def elements(rule: Rule, size: int, dtype: Dtype, ranks: int) -> int:
    """Elements of one block for a vector of ``size`` bytes: nccl-tests' count.

    As there, the size is that of the largest buffer: of all blocks together where a rank gives or gets one for each
    rank. It is rounded down to whole blocks, but a block has one element at least.
    """
    if not rule.sized:
        return 0
    blocks = ranks if rule.collective.by_rank else 1
    return max(1, size // (blocks * dtype.itemsize))


@dataclass(frozen=True)
class Case:
    """One measurement: a collective on blocks of ``count`` elements, out of place or in place, seen from one rank."""

    rule: Rule
    count: int
    dtype: Dtype
    op: str
    root: int
    rank: int
    ranks: int
    placement: Placement
    device: str = "cpu"

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def in_place(self) -> bool:
        return self.placement == "in"

    @property
    def at_root(self) -> bool:
        return self.rank == self.root

    @property
    def reduction(self) -> Reduction | None:
        return reduction(self.op, self.dtype, self.name) if self.rule.collective.reduces else None

    @property
    def given_blocks(self) -> int:
        """Blocks of the input."""
        return self.rule.collective.given_blocks(self.ranks)

    @property
    def gotten_blocks(self) -> int:
        """Blocks of the result."""
        return self.rule.collective.gotten_blocks(self.ranks)

    @property
    def has_input(self) -> bool:
        """Whether this rank hands an input over: of a scatter, only the root does."""
        return self.name == "bcast" or self.rule.collective.gives_at(self.rank, self.root)

    @property
    def has_output(self) -> bool:
        """Whether this rank has a result: of a gather and a reduce, only the root does."""
        return self.rule.collective.gets_at(self.rank, self.root)

    @property
    def block_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """The size that the table shows and bandwidth is computed from."""
        return self.block_bytes * max(self.given_blocks, self.gotten_blocks)
