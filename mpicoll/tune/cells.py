"""What is measured: a collective's vector of one size, on one kind of memory pages."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.collectives import COLLECTIVES

__all__ = ["CASES", "HUGE", "OURS", "Cell", "huge_bytes", "kinds", "new_arrays", "sizes"]

OURS = "max"
"""A reduction of floats that no MPI library computes rightly. There schedules are compared with ``exchange``."""
_ORDER = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce", "alltoall", "gather", "scatter", "scan",
          "exscan")  # fmt: skip
CASES = (*_ORDER, *(f"{name}:{OURS}" for name in _ORDER if COLLECTIVES[name].reduces))
"""The collectives that are measured, those first that programs spend most time in. Then their reductions that are
mpicoll's own."""
HUGE = 4 << 20
"""The bytes of an array from which on NumPy requests huge pages."""


class Cell(NamedTuple):
    """One vector of ``size`` bytes. ``case`` is a collective, or one with an operation as ``reduce:max``."""

    case: str
    size: int

    @property
    def collective(self) -> str:
        return self.case.partition(":")[0]

    @property
    def op(self) -> str:
        return self.case.partition(":")[2] or "sum"

    @property
    def otherwise(self) -> str:
        """What candidates are compared with."""
        return "exchange" if ":" in self.case else "native"


def kinds(size: int, system: str | None) -> tuple[str, ...]:
    """The kinds of pages that an array of so many bytes may lie on, where the ``system`` gives huge pages always, never
    or when they are asked for. NumPy requests huge pages for long arrays, and torch does not."""
    return ("huge", "small") if size >= HUGE and system in ("always", "madvise") else ("small",)


def new_arrays(kind: str) -> Callable[[int], Any]:
    """A function that makes arrays of so many bytes on this kind of pages: on huge ones where NumPy's would be.

    Each array is its own mapping, because memory that is used again keeps its pages. An array begins 64 bytes into a
    page, as long arrays of both libraries roughly do."""

    def new(nbytes: int) -> Any:
        memory = mmap.mmap(-1, nbytes + 64, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if kind == "huge" and nbytes >= HUGE else mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(memory, np.uint8, nbytes, 64)

    return new


def huge_bytes() -> int:
    """How many bytes of this process lie on huge pages."""
    said = re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    return 0 if said is None else int(said[1]) << 10


def sizes(low: int, high: int) -> Iterator[int]:
    """Each four times the one before."""
    while low <= high:
        yield low
        low *= 4
