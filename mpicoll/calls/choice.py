"""What is chosen for a call, the names that ``algorithm=`` takes for it, and the routes of device memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mpicoll.algorithms.steps import Schedule

NATIVE: Final = "native"
"""The MPI library's own collective."""
EXCHANGE: Final = "exchange"
"""A reduction for dtypes and operations that no MPI library computes rightly: MPI messages bring all ranks' values of
an element to one rank, and mpicoll reduces them there."""
NODE: Final = "node"
"""mpicoll's kernel: every rank of a node copies its input to memory that they share, and takes there what it wants."""
SHARED: Final = "shared"
"""The name in records of what the kernel does where arrays lie in memory that all ranks can open."""
WIDE = "wide"
"""The name that ``algorithm=`` takes for Wide. Schedules have their algorithms' names."""


@dataclass(frozen=True, slots=True)
class Wide:
    """A sum or a product of 16-bit floats that travel as float32. It is rounded once. ``of_floats`` carries it out."""

    of_floats: Literal["native"] | Schedule


Choice = Literal["native", "exchange", "node"] | Wide | Schedule
"""What is chosen for a call: the route that carries it out, and for a schedule this rank's part in an algorithm."""

AlgorithmName = Literal[
    "native",
    "exchange",
    "node",
    "wide",
    "binary_tree",
    "bine",
    "binomial_tree",
    "bruck",
    "chain",
    "dissemination",
    "double_binary_tree",
    "fixed_order",
    "linear",
    "neighbour_exchange",
    "pairwise",
    "pat",
    "rabenseifner",
    "recursive_doubling",
    "recursive_halving",
    "ring",
    "scatter_allgather",
    "segmented_ring",
    "swing",
    "tree",
    "two_level",
    "staged",
    "device",
    "ipc",
]
"""The built-in names that ``algorithm=`` takes for some collective, for editors that complete them."""

STAGED, DEVICE, IPC = "staged", "device", "ipc"
"""The names that ``algorithm=`` takes for the routes of device memory: through host memory, by a schedule whose
reductions happen on the device, or in the memory of the node's ranks, which they open for each other."""

PATHS = ("messages", "datatypes", "collectives", "reductions")
"""Paths on which an MPI library may take memory of a device, or not: messages of memory without gaps, messages of
derived datatypes, collectives that move data, and collectives that reduce."""


def algorithm_of(choice: Choice) -> str:
    """The name by which ``algorithm=`` asks for this choice."""
    match choice:
        case Wide():
            return WIDE
        case Schedule():
            return choice.algorithm
        case _:
            return choice
