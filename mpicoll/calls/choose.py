"""The choice of what carries a call out: ``choose`` is the one function that decides.

It decides by the call, by what is the same on all ranks of the communicator, and on memory of a device by what the
ranks have found out about their devices. So all ranks choose the same. Routes and fabrics carry the choice out.

The algorithm that the caller names comes first. Then comes the one that the environment variable MPICOLL_ALGORITHM
names (``allreduce:ring,bcast:native``), for the calls that it can serve. Otherwise ranks of one node have ``node``, the
kernel. Ranks of several have ``native``, the MPI library's own collective, or ``exchange``: it reduces in mpicoll what
no MPI library computes rightly. Long ones of these are two-level, or ``wide``: 16-bit floats travel as float32.

Calls on memory of a device take one of four routes. ``native`` and ``device`` hand that memory to the MPI library:
``native`` in its collectives, and ``device`` in the messages of a schedule whose reductions happen on the device.
``ipc`` is for ranks that open each other's memory. ``staged`` goes through host memory, and serves all calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple, cast

from mpicoll import algorithms
from mpicoll.algorithms.collectives import METHODS, canonical
from mpicoll.algorithms.steps import Nodes, Schedule
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.settings import Settings
from mpicoll.errors import ArgumentError
from mpicoll.machine.blocks import LEAST

NATIVE: Final = "native"
EXCHANGE: Final = "exchange"
NODE: Final = "node"
WIDE: Final = "wide"
SCHEDULED: Final = "scheduled"  # the route of all schedules. They are named by their algorithms
STAGED: Final = "staged"
DEVICE: Final = "device"
IPC: Final = "ipc"
SHARED: Final = "shared"
"""The name in records of what the kernel does where arrays lie in memory that all ranks can open."""

PATHS = ("messages", "collectives", "reductions")
"""Paths on which an MPI library may take memory of a device, or not: messages, collectives that move data, and
collectives that reduce."""

TWO_LEVEL = "two_level"
LONG_MOVES = 2 << 20
"""Bytes of the shortest vector of a collective that only moves data which is copied once, and not in and out of memory
that ranks share: by the kernel, where few ranks can read each other's memory, or by the MPI library."""
LONGEST_ALONE = 64 << 10
"""Bytes of the longest vector of a single rank's collective that costs less than the MPI library's. That copies once,
or not at all in place."""
LONG = 1 << 20  # bytes of the shortest vector whose reduction is two-level by default, if MPI lacks it
IPC_FROM = 5 << 20
"""Bytes of a vector from which ``ipc`` is chosen where all ranks share one device. Two ranks on an H200 took 1.3 times
as long as by ``staged`` for 4 MiB, and 0.14 times for 64 MiB; for 256 KiB and less, twice as long and more."""
MAX_COUNT = 2**31 - 1  # the largest count that every MPI library takes. Not all of them have the large counts of MPI-4


@dataclass(frozen=True, slots=True)
class CommInfo:
    """What the choice depends on, besides the call. It is the same on all ranks of a communicator, and as long as the
    communicator lives.

    ``nodes`` says where the ranks are. ``library`` is the MPI library's name (``Open MPI``, ``MPICH``), empty where
    ranks are threads of one process. ``shares_memory`` says whether the kernel works in memory that the ranks share."""

    nodes: Nodes
    library: str
    shares_memory: bool = False
    settings: Settings = field(default_factory=Settings)

    @property
    def size(self) -> int:
        return self.nodes.size

    @property
    def one_node(self) -> bool:
        return self.nodes.alone

    def in_rank_order(self, reduction: Reduction | None) -> bool:
        """Whether the values of an element must be combined in the order of the ranks."""
        return reduction is not None and self.settings.reproducible and reduction.dtype.kind in "fc"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What all ranks know of their devices. ``reduces`` says whether these compute the call's reduction, ``works`` on
    which of ``PATHS`` the MPI library takes their memory, and ``one_device`` whether all ranks are on one device."""

    reduces: bool
    works: frozenset[str] = frozenset()
    one_device: bool = False


Route = Literal["native", "exchange", "node", "wide", "scheduled", "staged", "device", "ipc"]


class Choice(NamedTuple):
    """What carries a call out, and why."""

    name: str  # what ``algorithm=`` calls it
    why: str
    route: Route
    schedule: str | None = None
    """The algorithm whose schedule the route runs, if it runs one. Of ``staged``, what is named for the host's call."""
    zero_copy: bool = False
    """Whether ranks look in the call whether all its arrays lie in memory that others can open. If so, the kernel
    carries it out where they lie, whatever the route."""
    in_parts: bool | None = False
    """Whether a rank has more elements than a count of MPI can say. None where ranks must tell each other in the
    call."""


def choose(call: Call, algorithm: str | None, info: CommInfo, device: DeviceInfo | None = None) -> Choice:
    """What carries out a call that names this ``algorithm``, or none. ``device`` is given for memory of a device.

    Raises ArgumentError for a name that is unknown, or for an algorithm that cannot serve this call."""
    if device is not None:
        return _choose_on_device(call, algorithm, info, device)
    reduction, nbytes = call.reduction, call.nbytes(info.size)
    wanted = preferred(call.operation, info.settings.preferred) if algorithm is None else None
    name, why = _named(call, algorithm, wanted, info) or _best(call.operation, reduction, nbytes, info)
    if not info.library:
        return Choice(name, why, SCHEDULED, name)
    is_free = algorithm is None and wanted is None
    zero_copy = info.shares_memory and (is_free or name == NODE) and _may_share(call, info.size)
    in_parts: bool | None = None
    if call.extent_is_common:
        in_parts = nbytes > MAX_COUNT and call.extent(info.size) > MAX_COUNT
    if name not in (NATIVE, EXCHANGE, NODE, WIDE):
        return Choice(name, why, SCHEDULED, name, zero_copy, in_parts)
    between_nodes = TWO_LEVEL if name == WIDE and not info.one_node else None
    return Choice(name, why, cast(Route, name), between_nodes, zero_copy, in_parts)


def _choose_on_device(call: Call, algorithm: str | None, info: CommInfo, device: DeviceInfo) -> Choice:
    """The same for memory of a device. Nothing was measured on several GPUs. So a call that names no route is native
    only where the host's would be native or the kernel's, and ipc only where ranks share a GPU."""
    named_route, named = device_route(algorithm)
    on_host = choose(call, named, info)  # a wrong name is refused
    table = call.collective
    may_open = info.one_node and call.extent_is_common and device.reduces and table.mpi and table.prefix is None
    mpi_takes = ("collectives" if call.reduction is None else "reductions") in device.works and _by_mpi_alone(call)
    staged = Choice(STAGED, "it serves all calls", STAGED, named)
    if algorithm is None:
        settings = info.settings
        is_free = preferred(call.operation, settings.preferred) is None and not settings.reproducible
        mpi_can = is_free and (call.reduction is None or call.reduction.mpi)
        if not info.library:
            return staged
        if mpi_takes and (on_host.name == NATIVE or (on_host.name == NODE and mpi_can)):
            return Choice(NATIVE, "the MPI library takes such memory", NATIVE, in_parts=on_host.in_parts)
        if is_free and device.one_device and may_open and call.nbytes(info.size) >= IPC_FROM:
            return Choice(IPC, "the ranks share a device", IPC)
        return staged
    why = "the call names it"
    if algorithm == NATIVE and mpi_takes:
        return Choice(NATIVE, why, NATIVE, in_parts=on_host.in_parts)
    if named_route == DEVICE and device.reduces and "messages" in device.works:
        between = choose(call, named or between_memories(call.operation), info)
        return Choice(f"{DEVICE}:{between.name}", why, DEVICE, between.schedule)
    if named_route == IPC and may_open:
        return Choice(IPC, why, IPC)
    return staged


def schedule_of(choice: Choice, call: Call, rank: int, nodes: Nodes) -> Schedule:
    """This rank's part in the algorithm whose schedule the choice names."""
    assert choice.schedule is not None
    size = nodes.size
    return algorithms.schedule(call.collective.name, choice.schedule, rank, size, call.root, call.nbytes(size), nodes)


def names(operation: str, info: CommInfo | None = None) -> tuple[str, ...]:
    """The names that ``algorithm=`` takes for a Communicator's method, among ranks of these info."""
    table, uneven = METHODS[operation]
    schedules = tuple(a.name for a in algorithms.algorithms(table.name) if a.uneven or not uneven)
    if not table.mpi or (info is not None and not info.library):
        return schedules
    found = [NATIVE]
    if table.reduces:
        found += [EXCHANGE, *[WIDE] * (table.prefix is None)]
    if info is None or info.shares_memory:
        found.append(NODE)
    return (*found, *schedules)


def _named(call: Call, algorithm: str | None, wanted: str | None, info: CommInfo) -> tuple[str, str] | None:
    """The algorithm that the call names, or the environment (``wanted``), or that a reproducible reduction needs, and
    why it is that one. None if nobody names any."""
    operation, reduction = call.operation, call.reduction
    if info.in_rank_order(reduction):
        by_schedules = not (info.library and call.collective.mpi)
        orderly = [_in_rank_order(operation)] if by_schedules else [NODE] * info.shares_memory + [EXCHANGE]
        chosen: str = orderly[0] if algorithm is None else algorithm
        if chosen not in orderly:
            only = f"None or {' or '.join(orderly)}: reductions are reproducible"
            raise ArgumentError(operation, "algorithm", only, repr(algorithm))
        return chosen, "reductions are reproducible"
    if algorithm is not None:
        expected = _expected_instead(algorithm, operation, reduction, info, call.root)
        if expected:
            raise ArgumentError(operation, "algorithm", expected, repr(algorithm))
        return algorithm, "the call names it"
    if wanted is not None and not _expected_instead(wanted, operation, reduction, info, call.root):
        return wanted, "MPICOLL_ALGORITHM names it"
    return None


def _expected_instead(
    algorithm: str, operation: str, reduction: Reduction | None, info: CommInfo, root: int
) -> str | None:
    """What is expected instead of an algorithm that cannot serve this call; None where it can serve it."""
    known = names(operation, info)
    if algorithm not in known:
        lacks = info.library and algorithm == NODE
        why = " (the ranks share no memory, or mpicoll has no kernel here: `mpicoll doctor`)" if lacks else ""
        return f"None or one of {', '.join(known)}{why}"
    if algorithm == NATIVE and reduction is not None and not reduction.mpi:
        others = ", ".join(name for name in known if name != NATIVE)
        return f"one that serves {reduction.op} of {reduction.dtype}, which MPI libraries do not: None, {others}"
    if algorithm == WIDE and reduction is not None and not reduction.rounds:
        return f"one that serves {reduction.op} of {reduction.dtype} ({WIDE} is for sums and products of 16-bit floats)"
    chosen = algorithms.find(METHODS[operation][0].name, algorithm)
    reason = None if chosen is None else chosen.declines(info.size, root)
    if not reason:
        return None
    return f"one that serves {info.size} ranks and root {root} ({algorithm} does not: {reason})"


def device_route(algorithm: str | None) -> tuple[str, str | None]:
    """The route that a call on device memory names, and the algorithm that carries its messages out, if it names one:
    as in ``device:ring``. An algorithm that names no route is that of the host, through which the data goes then."""
    route, _, name = (algorithm or "").partition(":")
    return (route, name or None) if route in (STAGED, DEVICE, IPC) else (STAGED, algorithm)


def _may_share(call: Call, size: int) -> bool:
    """Whether ranks look whether the call's arrays lie in memory that others can open."""
    table, reduction = call.collective, call.reduction
    if not call.extent_is_common:
        return table.mpi  # no rank knows how long the others' arrays are
    longest = call.nbytes(size)
    shortest = longest // size if table.gathers or table.scatters else longest
    factor = reduction is not None and reduction.op.factor is not None
    return table.mpi and table.moves and table.prefix is None and not factor and shortest >= LEAST


def _by_mpi_alone(call: Call) -> bool:
    """Whether the MPI library alone touches the memory. mpicoll's own arithmetic needs host memory. So does the copy in
    a reduce_scatter that is in place, as it may be on some ranks alone."""
    if call.reduction is None:
        return True
    return not (call.reduction.averages or call.reduction.op.factor is not None or call.collective.scatters)


def _best(operation: str, reduction: Reduction | None, nbytes: int, info: CommInfo) -> tuple[str, str]:
    if not info.library:
        return between_memories(operation), "the ranks are threads"
    if not METHODS[operation][0].mpi:
        return between_memories(operation), "MPI has no such collective"
    mpi_cannot = reduction is not None and not reduction.mpi
    otherwise = EXCHANGE if mpi_cannot else NATIVE
    if info.size == 1 and (nbytes > LONGEST_ALONE or not info.shares_memory):
        return otherwise, "there is one rank"
    if reduction is not None and mpi_cannot and _nodes_save(operation, nbytes, info.nodes):
        if not _rounds_more_than_once(reduction, info.size):
            return TWO_LEVEL, "MPI lacks it, and so nodes of several ranks send the fewest bytes"
        if len(info.nodes.ranks) > 2:  # between two nodes of two ranks, an exchange was measured to be as fast
            return WIDE, "MPI lacks it, and so nodes of several ranks send the fewest bytes that round once"
    if not info.shares_memory:
        return otherwise, "the ranks share no memory in which mpicoll's kernel works"
    table, uneven = METHODS[operation]
    if reduction is None and nbytes >= LONG_MOVES and table.extent_is_common(uneven):
        return otherwise, "the MPI library moves long arrays fastest, where ranks cannot reach each other's"
    return NODE, "the ranks share a node"


def _nodes_save(operation: str, nbytes: int, nodes: Nodes) -> bool:
    """Whether a two-level algorithm sends much less between nodes than an exchange: where all have several ranks."""
    several = not nodes.alone and min(map(len, nodes.ranks)) > 1
    known = algorithms.find(METHODS[operation][0].name, TWO_LEVEL)
    return nbytes >= LONG and several and known is not None


def _rounds_more_than_once(reduction: Reduction, size: int) -> bool:
    """Whether a schedule would round short floats more than once. Exchange rounds them once. A schedule rounds each
    time that it combines two values, when it multiplies them by a factor, and when it divides their sum."""
    return reduction.rounds and (size > 2 or reduction.averages or reduction.op.factor is not None)


def between_memories(operation: str) -> str:
    """The algorithm for ranks that read each other's memory, or reduce where the data lies: one of those that move
    least data. It is the first one in the list of algorithms, but for reductions whose first one waits longer."""
    table, _ = METHODS[operation]
    wanted = "pairwise" if table.scatters else "recursive_doubling"
    sooner = table.reduces and (table.scatters or table.prefix is not None)
    return wanted if sooner and algorithms.find(table.name, wanted) else _in_rank_order(operation)


def _in_rank_order(operation: str) -> str:
    """The schedule that reduces in rank order: the first one in the list of algorithms."""
    return next(algorithms.algorithms(METHODS[operation][0].name)).name


def preferred(operation: str, text: str) -> str | None:
    """The algorithm that the text of MPICOLL_ALGORITHM names for this operation, None where it names none."""
    collective = METHODS[operation][0].name
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
