"""Which algorithm carries out a call.

``native`` is the MPI library's own collective. ``exchange`` moves the values with the MPI's collectives and reduces
them here: it serves every dtype and operation that no MPI computes rightly.
"""

from __future__ import annotations

from mpicoll.collectives import COLLECTIVES
from mpicoll.dtypes import Reduction
from mpicoll.errors import ArgumentError

__all__ = ["algorithms", "select"]


def algorithms(collective: str) -> tuple[str, ...]:
    """The names that ``algorithm=`` takes for this collective, its v-variant included."""
    table = COLLECTIVES[collective.removesuffix("v")]
    return ("native", "exchange") if table.reduces else ("native",)


def select(collective: str, reduction: Reduction | None, algorithm: str | None = None) -> str:
    """The algorithm that serves the call: the one named, or the best where None is.

    Raises ArgumentError for a name that is unknown, or that cannot serve this reduction.
    """
    native_serves = reduction is None or reduction.mpi
    if algorithm is None:
        return "native" if native_serves else "exchange"
    if algorithm not in algorithms(collective):
        known = ", ".join(algorithms(collective))
        raise ArgumentError(collective, "algorithm", f"None or one of {known}", repr(algorithm))
    if algorithm == "native" and reduction is not None and not native_serves:
        expected = f"one that serves {reduction.op} of {reduction.dtype}, which MPI libraries do not: None or exchange"
        raise ArgumentError(collective, "algorithm", expected, repr(algorithm))
    return algorithm
