"""Types of the names that a call takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpicoll.arrays.dtypes import Op, OpName
from mpicoll.calls.choice import AlgorithmName

if TYPE_CHECKING:
    from mpi4py import MPI

    # Editors complete the names of a Literal, and ``str`` takes the names that a program has in a variable.
    OpLike = OpName | str | Op | MPI.Op
    """A reduction: its name, an Op, or one of mpi4py's operations."""
    AlgorithmLike = AlgorithmName | str
    """The name of an algorithm: a built-in one, one that a program has registered, or a route and a name."""
