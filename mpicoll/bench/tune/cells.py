"""What is measured: a collective's vector of one size, on one kind of memory pages."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.algorithms.collectives import COLLECTIVES, UNEVEN, Collective, even_and_uneven
from mpicoll.machine.pages import HUGE

__all__ = ["CASES", "OURS", "SHORTEST", "Cell", "huge_bytes", "kinds", "new_arrays", "sizes"]

OURS = "max"
"""A reduction of floats that no MPI library computes rightly. There schedules are compared with ``exchange``."""
_ORDER = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce", "alltoall", "gather", "scatter", "scan",
          "exscan")  # fmt: skip
CASES = (*_ORDER, *(f"{name}:{OURS}" for name in _ORDER if COLLECTIVES[name].reduces), *UNEVEN)
"""The collectives that are measured, those first that programs spend most time in. Then their reductions that are
mpicoll's own, and the methods for uneven blocks: an MPI library may carry these out in another way."""
SHORTEST = 256
"""Bytes of the shortest vector that is measured where one algorithm is to serve all sizes."""


class Cell(NamedTuple):
    """One vector of ``size`` bytes. ``case`` is a collective, one with an operation as ``reduce:max``, or a method for
    uneven blocks as ``allgatherv``."""

    case: str
    size: int

    @property
    def operation(self) -> str:
        """The Communicator's method."""
        return self.case.partition(":")[0]

    @property
    def collective(self) -> Collective:
        return even_and_uneven(self.operation)[0]

    @property
    def uneven(self) -> bool:
        return even_and_uneven(self.operation)[1]

    @property
    def extent_is_common(self) -> bool:
        return self.collective.extent_is_common(self.uneven)

    @property
    def op(self) -> str:
        return self.case.partition(":")[2] or "sum"

    @property
    def otherwise(self) -> str:
        """What candidates are compared with."""
        return "exchange" if ":" in self.case else "native"


def kinds(system: str | None) -> tuple[str, ...]:
    """The kinds of pages that arrays may lie on, where the ``system`` gives huge pages always, never or when they are
    asked for. NumPy asks for them for arrays from 4 MiB on, and torch does not. When NumPy frees such an array, the C
    library may keep its pages, and make short arrays there."""
    return ("huge", "small") if system in ("always", "madvise") else ("small",)


def new_arrays(kind: str) -> Callable[[int], Any]:
    """A function that makes arrays of so many bytes on this kind of pages.

    Each array on small pages is its own mapping, because memory that is used again keeps its pages. Arrays on huge
    pages lie one behind the other, so that short ones share a page. An array begins 64 bytes into a small page, as long
    arrays of both libraries roughly do."""

    def on_small(nbytes: int) -> Any:
        memory = mmap.mmap(-1, nbytes + 64, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(memory, np.uint8, nbytes, 64)

    left = np.empty(0, np.uint8)

    def on_huge(nbytes: int) -> Any:
        nonlocal left
        whole = -(-(nbytes + 64) // mmap.PAGESIZE) * mmap.PAGESIZE
        if len(left) < whole:
            memory = mmap.mmap(-1, whole + 2 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            left = np.frombuffer(memory, np.uint8)
            left = left[-left.ctypes.data % HUGE :]
        found, left = left[64 : 64 + nbytes], left[whole:]
        return found

    return on_huge if kind == "huge" else on_small


def huge_bytes() -> int:
    """How many bytes of this process lie on huge pages."""
    said = re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    return 0 if said is None else int(said[1]) << 10


def sizes(case: str, low: int, high: int) -> Iterator[int]:
    """Each four times the one before. Where ranks do not know how long a call is, they begin with a short one: the
    algorithm must not be slower at any size."""
    size = low if Cell(case, 0).extent_is_common else min(low, SHORTEST)
    while size <= high:
        yield size
        size *= 4
