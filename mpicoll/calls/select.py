"""The choice of the algorithm that carries out a call.

``native`` is the MPI library's own collective. ``exchange`` moves the values in messages and reduces them in mpicoll:
it serves the dtypes and operations that no MPI library computes rightly. ``node`` is the kernel's way through memory
that the ranks of one node share. ``wide`` sends 16-bit floats as float32, which the MPI library can add up, and so can
a schedule without rounding more than once. All other names are those of schedules in ``mpicoll.algorithms``.

The algorithm that the caller names comes first. Then comes the one that the environment variable MPICOLL_ALGORITHM
names (``allreduce:ring,bcast:native``), for the calls that it can serve. Otherwise it is ``node`` among ranks of one
node, and ``native`` or ``exchange`` among ranks of several. There, long reductions that MPI lacks are two-level. Where
reductions are to be reproducible, they are combined in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache

from mpicoll import algorithms
from mpicoll.algorithms.collectives import canonical, even_and_uneven
from mpicoll.algorithms.steps import Nodes
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.choice import DEVICE, EXCHANGE, IPC, NATIVE, NODE, STAGED, WIDE, Choice, Wide
from mpicoll.calls.rules import Rules
from mpicoll.errors import ArgumentError, misspelt

TWO_LEVEL = "two_level"
LONG_MOVES = 2 << 20
"""Bytes of the shortest vector of a collective that only moves data which MPI libraries move in less time than it takes
to copy it in and out of memory that ranks share."""
LONG = 1 << 20
"""Bytes of the shortest vector whose reduction is two-level by default, if MPI lacks it."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What the choice of an algorithm depends on, besides the call. It is the same on all ranks of a communicator.

    ``nodes`` says where the ranks are. ``library`` is the MPI library's name (``Open MPI``, ``MPICH``), empty where
    ranks are threads of one process. ``kernel`` says whether the ranks share memory in which the kernel works.
    """

    nodes: Nodes
    library: str
    kernel: bool = False
    rules: Rules = field(default_factory=Rules)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.nodes.size

    def in_rank_order(self, reduction: Reduction | None) -> bool:
        """Whether the values of an element must be combined in the order of the ranks."""
        return reduction is not None and self.rules.reproducible and reduction.depends_on_order


def names(operation: str, traits: Traits | None = None) -> tuple[str, ...]:
    """The names that ``algorithm=`` takes for a Communicator's method, among ranks of these traits."""
    table, uneven = even_and_uneven(operation)
    schedules = tuple(a.name for a in algorithms.algorithms(table.name) if a.uneven or not uneven)
    if traits is not None and not traits.library:
        return schedules
    found = [NATIVE]
    if table.reduces:
        found += [EXCHANGE, *[WIDE] * (table.prefix is None)]
    if traits is None or traits.kernel:
        found.append(NODE)
    return (*found, *schedules)


def select(
    operation: str,
    reduction: Reduction | None,
    nbytes: int,
    traits: Traits,
    root: int = 0,
    algorithm: str | None = None,
) -> str:
    """The algorithm for a call whose whole vector has ``nbytes`` bytes: the one named, or the best one if that is None.

    Raises ArgumentError for a name that is unknown, or for an algorithm that cannot serve this call.
    """
    return explained(operation, reduction, nbytes, traits, root, algorithm)[0]


def explained(
    operation: str,
    reduction: Reduction | None,
    nbytes: int,
    traits: Traits,
    root: int = 0,
    algorithm: str | None = None,
) -> tuple[str, str]:
    """The algorithm as ``select`` names it, and why it is that one."""
    if traits.in_rank_order(reduction):
        orderly = [NODE] * traits.kernel + [EXCHANGE] if traits.library else [_in_rank_order(operation)]
        chosen: str = orderly[0] if algorithm is None else algorithm
        if chosen not in orderly:
            only = f"None or {' or '.join(orderly)}: reductions are reproducible"
            raise ArgumentError(operation, "algorithm", only, repr(algorithm))
        return chosen, "reductions are reproducible"
    if algorithm is not None:
        expected = _expected_instead(algorithm, operation, reduction, traits, root)
        if expected:
            known = names(operation)
            unknown = isinstance(algorithm, str) and algorithm not in known
            given = misspelt(algorithm, known) if unknown else repr(algorithm)
            raise ArgumentError(operation, "algorithm", expected, given)
        return algorithm, "the call names it"
    wanted = preferred(operation, traits.rules.preferred)
    if wanted is not None and not _expected_instead(wanted, operation, reduction, traits, root):
        return wanted, "MPICOLL_ALGORITHM names it"
    return _best(operation, reduction, nbytes, traits)


def _expected_instead(
    algorithm: str, operation: str, reduction: Reduction | None, traits: Traits, root: int
) -> str | None:
    """What is expected instead of an algorithm that cannot serve this call; None where it can serve it."""
    known = names(operation, traits)
    if algorithm not in known:
        lacks = traits.library and algorithm == NODE
        why = " (the ranks share no memory, or mpicoll has no kernel here: `mpicoll doctor`)" if lacks else ""
        return f"None or one of {', '.join(known)}{why}"
    if algorithm == NATIVE and reduction is not None and not reduction.mpi:
        others = ", ".join(name for name in known if name != NATIVE)
        return f"one that serves {reduction.op} of {reduction.dtype}, which MPI libraries do not: None, {others}"
    if algorithm == WIDE and reduction is not None and not reduction.rounds:
        return f"one that serves {reduction.op} of {reduction.dtype} ({WIDE} is for sums and products of 16-bit floats)"
    chosen = algorithms.find(even_and_uneven(operation)[0].name, algorithm)
    reason = None if chosen is None else chosen.declines(traits.size, root)
    if not reason:
        return None
    return f"one that serves {traits.size} ranks and root {root} ({algorithm} does not: {reason})"


def taken_route(algorithm: str | None, reduces: bool, works: Set[str]) -> str:
    """The route for a call on device memory. ``algorithm`` is what the call names, or ``native`` if it names none and
    the host's choice is that. ``reduces`` says whether it is a reduction. A route that hands device memory to the MPI
    library is taken only if the path that it needs ``works``, of ``PATHS``.

    Nothing was measured on several GPUs, so that a call gets no other route unless it names one, or its ranks share a
    GPU (``device_calls.IPC_FROM``)."""
    route = NATIVE if algorithm == NATIVE else device_route(algorithm)[0]
    needed = {NATIVE: "reductions" if reduces else "collectives", DEVICE: "messages"}.get(route)
    return route if needed is None or needed in works else STAGED


def device_route(algorithm: str | None) -> tuple[str, str | None]:
    """The route that a call on device memory names, and the algorithm that carries its messages out, if it names one:
    as in ``device:ring``. An algorithm that names no route is that of the host, through which the data goes then."""
    route, _, name = (algorithm or "").partition(":")
    return (route, name or None) if route in (STAGED, DEVICE, IPC) else (STAGED, algorithm)


def choice_of(name: str, call: Call, rank: int, nodes: Nodes) -> Choice:
    """The choice that the algorithm of this ``name`` means for this rank. ``select`` has named it."""
    if name == NATIVE:
        return NATIVE
    if name == EXCHANGE:
        return EXCHANGE
    if name == NODE:
        return NODE
    if name == WIDE and nodes.alone:
        return Wide(NATIVE)
    size, scheduled = nodes.size, TWO_LEVEL if name == WIDE else name
    schedule = algorithms.schedule(call.collective.name, scheduled, rank, size, call.root, call.nbytes(size), nodes)
    return Wide(schedule) if name == WIDE else schedule


def _best(operation: str, reduction: Reduction | None, nbytes: int, traits: Traits) -> tuple[str, str]:
    if not traits.library:
        return between_memories(operation), "the ranks are threads"
    mpi_cannot = reduction is not None and not reduction.mpi
    otherwise = EXCHANGE if mpi_cannot else NATIVE
    if traits.size == 1:
        return otherwise, "there is one rank"
    if reduction is not None and mpi_cannot and _nodes_save(operation, nbytes, traits.nodes):
        if not _rounds_more_than_once(reduction, traits.size):
            return TWO_LEVEL, "MPI lacks it, and so nodes of several ranks send the fewest bytes"
        if len(traits.nodes.ranks) > 2:  # between two nodes of two ranks, an exchange was measured to be as fast
            return WIDE, "MPI lacks it, and so nodes of several ranks send the fewest bytes that round once"
    if not traits.kernel:
        return otherwise, "the ranks share no memory in which mpicoll's kernel works"
    table, uneven = even_and_uneven(operation)
    if reduction is None and nbytes >= LONG_MOVES and table.extent_is_common(uneven):
        return otherwise, "the MPI library moves long arrays fastest, where they do not lie in shared memory"
    return NODE, "the ranks share a node"


def _nodes_save(operation: str, nbytes: int, nodes: Nodes) -> bool:
    """Whether a two-level algorithm sends much less between nodes than an exchange: where all have several ranks."""
    several = not nodes.alone and min(map(len, nodes.ranks)) > 1
    known = algorithms.find(even_and_uneven(operation)[0].name, TWO_LEVEL)
    return nbytes >= LONG and several and known is not None


def _rounds_more_than_once(reduction: Reduction, size: int) -> bool:
    """Whether a schedule would round short floats more than once. Exchange rounds them once. A schedule rounds each
    time that it combines two values, when it multiplies them by a factor, and when it divides their sum."""
    return reduction.rounds and (size > 2 or reduction.averages or reduction.op.factor is not None)


def between_memories(operation: str) -> str:
    """The algorithm for ranks that read each other's memory, or reduce where the data lies: one of those that move
    least data. It is the first one in the list of algorithms, but for reductions whose first one waits longer."""
    table, _ = even_and_uneven(operation)
    if table.reduces and table.scatters:
        return "pairwise"
    if table.prefix is not None:
        return "recursive_doubling"
    return _in_rank_order(operation)


def _in_rank_order(operation: str) -> str:
    """The schedule that reduces in rank order: the first one in the list of algorithms."""
    return next(algorithms.algorithms(even_and_uneven(operation)[0].name)).name


def preferred(operation: str, text: str) -> str | None:
    """The algorithm that the text of MPICOLL_ALGORITHM names for this operation, None where it names none."""
    collective = even_and_uneven(operation)[0].name
    name = _read(text).get(collective)
    if name is not None and name not in names(collective):
        expected = f"for {collective} one of {', '.join(names(collective))}"
        raise ArgumentError("mpicoll", "MPICOLL_ALGORITHM", expected, repr(name))
    return name


@lru_cache(maxsize=8)
def _read(text: str) -> Mapping[str, str]:
    """The algorithm by collective, as the text of MPICOLL_ALGORITHM has them."""
    named: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        spelling, _, name = (text.strip() for text in part.partition(":"))
        collective = canonical(spelling)
        if collective is None or not name or collective in named:
            expected = "collective:algorithm, ... with names that `mpicoll algorithms` lists, each collective once"
            raise ArgumentError("mpicoll", "MPICOLL_ALGORITHM", expected, repr(part))
        named[collective] = name
    return named
