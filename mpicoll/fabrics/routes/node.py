"""Collectives of the ranks of one node, by the kernel (``mpicoll/node``) in memory that they share.

Where all arrays of a call lie in memory that ranks can open, they are read and written where they lie. Otherwise each
rank copies its input, piece by piece, to memory of the communicator, where the others read it; or long arrays are read
and written in the other process, through the system. In each call the ranks find out which it is, at no cost: they meet
anyway. Ranks that make different calls find that out, too, before data moves."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from itertools import accumulate
from threading import get_ident, main_thread
from time import monotonic
from typing import TYPE_CHECKING

from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.kernels import numbers
from mpicoll.calls.call import Call
from mpicoll.calls.choose import NODE, SHARED
from mpicoll.calls.plan import Plan, sequence
from mpicoll.errors import MessageError, StateError
from mpicoll.machine import blocks
from mpicoll.machine.blocks import ForeignSegment, Place, ShmSegment, opened, own_at
from mpicoll.machine.shared_memory import of_one_rank, share
from mpicoll.node.loaded import kernel
from mpicoll.supervise import sites
from mpicoll.supervise.record import Record

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpicoll.node.kernel import Messages, Node
    from mpicoll.node.kernel import Plan as NodePlan

UNIT = 8 << 10
"""Bytes of each of a rank's 16 units of slots. Eight, of a long call's piece, stay in the second-level cache. Units are
four times as long where ranks take turns on cores, because each piece costs a change of ranks then."""
_UNITS = 16
SLOT = 8 * UNIT

MOST_RANKS = SLOT // 64  # a slot has a line of the cache for each rank at least

_MOST_DIMS = 4  # of an array with gaps
_BETWEEN_LOOKS = 0.1  # seconds: a look at all threads takes as long as hundreds of messages
_WAITS_FOR_ITSELF = (
    "the only rank of a communicator waits for itself, and no other thread of it can send or receive a message. "
    "A job of several ranks: mpicoll run -n 2 PROGRAM"
)
MAIN = main_thread().ident
Pair = tuple[Buffer | None, Buffer | None]
_EXTENTS = {"0": 0, "1": 1, "p": 2}
_ROOTS = {None: 0, "gives": 1, "gets": 2}
_PREFIXES = {None: 0, "inclusive": 1, "exclusive": 2}


def meet(comm: MPI.Intracomm, crowded: bool) -> tuple[Node, Messages] | None:
    """Memory in which these ranks of one node meet, and that through which their messages go. None if one of them
    cannot map memory of the others, or has no kernel. Collective. ``crowded`` says whether ranks take turns on
    cores."""
    nbytes, start, unit = None, 0, UNIT * 4 if crowded else UNIT
    if kernel is not None and comm.size <= MOST_RANKS:
        start = kernel.head_size(comm.size) + _UNITS * unit
        nbytes = start + kernel.messages_size(comm.size, crowded)
    made = share(comm, nbytes) if comm.size > 1 else of_one_rank(nbytes)
    if made is None or kernel is None:
        return None
    addresses = tuple(block.ctypes.data for block in made)

    looked, seen = 0.0, -1

    def meanwhile(moves: int) -> None:
        nonlocal looked, seen
        if len(addresses) == 1 and get_ident() == MAIN and monotonic() > looked + _BETWEEN_LOOKS:
            looked = monotonic()
            if sites.is_alone():
                if seen == moves:
                    raise MessageError(_WAITS_FOR_ITSELF)
                seen = moves  # another thread may have sent a message just now, and have ended
        # MPI moves messages only while it is called, and the other rank may wait for one. At the end of the program, no
        # thread beside the main one may be within MPI.
        if get_ident() == MAIN and comm:  # it may be freed while messages are under way
            comm.Iprobe()

    of_messages = tuple(address + start for address in addresses)
    return (
        kernel.Node(addresses, made, comm.rank, unit, crowded, comm.Iprobe),
        kernel.Messages(of_messages, made, comm.rank, crowded, meanwhile),
    )


def needs_all(call: Call, zero_copy: bool) -> bool:
    """Whether no rank ends the call before all have come, and not only those whose data it gets."""
    table, reduction = call.collective, call.reduction
    scales = reduction is not None and reduction.op.factor is not None
    return scales or zero_copy or (table.root is None and table.prefix is None)


def takes_gaps(call: Call) -> bool:
    """Whether the kernel can read and write the call's arrays where they lie, though there are gaps."""
    if call.in_place and not call.collective.elementwise:
        return False
    buffers = [b for b in (call.send, call.recv) if b is not None]
    return all(b.device == "cpu" and not any(b.read_as) and len(b.shape) <= _MOST_DIMS for b in buffers)


def bind(
    node: Node, rank: int, size: int, call: Call, zero_copy: bool, record: Record, otherwise: list[Plan] | None = None
) -> NodePlan:
    """The kernel's plan. With ``zero_copy``, the ranks find out in each call whether all arrays lie in memory that
    others can open. If not, the call is carried out ``otherwise``, or through memory of the communicator.

    The plan may also be begun. Several calls that are under way are carried out one after another: in later calls of
    the rank, or by a thread of the kernel's."""
    elsewhere = None if otherwise is None else sequence(*otherwise)
    assert kernel is not None
    table, reduction = call.collective, call.reduction
    ends = starts_of(call, size, call.sendcounts), starts_of(call, size, call.recvcounts)
    given, taken = (array("Q", each).tobytes() for each in ends)
    buffers = input_and_output(call, rank, size)
    addresses = [None if b is None else b.address for b in buffers]
    gaps = tuple((b.dtype.itemsize, b.shape, b.strides) if b and not b.plain else None for b in buffers)
    waits = needs_all(call, zero_copy)
    if waits:
        record.root = None  # nobody is in it for the root alone
    of = _Call(node, size, call, record, buffers, elsewhere)
    plan: NodePlan = kernel.Plan(
        node,
        of,
        (_EXTENTS[table.gives], _EXTENTS[table.gets], _ROOTS[table.root], _PREFIXES[table.prefix]),
        call.root,
        len(given) // 8 - 1,
        given,
        taken,
        not call.extent_is_common,
        *addresses,
        gaps,
        int.from_bytes(record.digest, "little"),
        (waits, zero_copy, elsewhere is not None),
        None if reduction is None else (*numbers(reduction), reduction.op.factor),
    )
    return plan


class _Call:
    """What the kernel asks Python about a call."""

    def __init__(self, node: Node, size: int, call: Call, record: Record, buffers: Pair, elsewhere: Plan | None):
        self._node, self._size, self._operation, self._record = node, size, call.operation, record
        self._buffers, self._names = buffers, (NODE, SHARED, record.route)
        if elsewhere is not None:
            self.elsewhere = elsewhere
        record.route = NODE if elsewhere is None else record.route
        self._known: Sequence[ShmSegment] | None = None
        self._adopted: list[ForeignSegment] = []
        self._said = (0, b"", False)
        self._opened: list[object] = []  # what holds other ranks' memory

    def find(self, plan: NodePlan) -> None:
        """Find out where this rank's memory lies now: something else may be at this address."""
        if self._known is not blocks.known or not all(own.is_there() for own in self._adopted):
            self._forget()
            self._known = blocks.known
            owns = [None if b is None else _own(b) for b in self._buffers]
            places = [*map(_place, self._buffers, owns)]
            self._adopted = [own for own in owns if isinstance(own, ForeignSegment)]
            this = weakref.ref(self)
            self._ends = [weakref.ref(own.holder(), lambda _: _forget(this)) for own in self._adopted]
            if None in places:
                self._said = 0, bytes(8 * 2 * len(Place._fields)), False
            else:
                words = array("q", [word for place in places if place is not None for word in place])
                self._said = next(blocks.versions), words.tobytes(), bool(self._adopted)
        plan.lies(*self._said)

    def look(self, plan: NodePlan) -> None:
        """Open the ranks' arrays, which lie elsewhere than the last time."""
        self._opened = []
        half = len(Place._fields)
        for rank in range(self._size):
            version, said = self._node.said(rank)
            words = array("q", said)
            addresses = [self._open(rank, Place(*words[at : at + half])) for at in (0, half)]
            plan.found(rank, version, *addresses)

    def _open(self, rank: int, place: Place) -> int | None:
        if not place.nbytes:
            return None
        try:
            memory = opened(place)
        except OSError as error:
            raise MessageError(
                f"{self._operation}: the {place.nbytes} bytes of memory that rank {rank} gives (process "
                f"{place.process}) cannot be opened: {error}"
            ) from None
        self._opened.append(memory)
        return memory.ctypes.data

    def took(self, way: int) -> None:
        """The call went this way, and not as the last time."""
        self._record.route = self._names[way]

    def within(self) -> None:
        raise StateError(f"{self._operation}: a signal's handler calls it while this communicator is in another call")

    def differs(self) -> None:
        raise MessageError(f"{self._record.description}: another rank makes another call, or gives other numbers")

    def unequal(self, rank: int, expected: int, found: int) -> None:
        """In an alltoallv, a rank gives this one another number of bytes than it expects."""
        b = self._buffers[1] or self._buffers[0]
        assert b is not None
        expected, found = expected // b.dtype.itemsize, found // b.dtype.itemsize
        raise MessageError(f"{self._operation}: expected {expected} elements from rank {rank}; it sends {found}")

    def _forget(self) -> None:
        """Let go of other ranks' arrays, until the call is made again."""
        self._known, self._adopted, self._opened = None, [], []


def _forget(call: weakref.ref[_Call]) -> None:
    if (still := call()) is not None:
        still._forget()


def _own(b: Buffer) -> ShmSegment | None:
    """What has this memory, if other ranks can open it."""
    return own_at(b.address, b.nbytes) if b.plain and b.device == "cpu" and b.count else None


def _place(b: Buffer | None, own: ShmSegment | None) -> Place | None:
    """Where the memory lies; all zeros where there is none, and None where other ranks cannot open it."""
    if b is None or b.count == 0:
        return Place(*[0] * len(Place._fields))
    return None if own is None else own.place_of(b.address)


def input_and_output(call: Call, rank: int, size: int) -> Pair:
    """The memory that the rank gives, and the memory that it gets. In place, one is a part of the other."""
    table, send, recv = call.collective, call.send, call.recv
    if call.in_place and not table.elementwise:
        whole = recv if table.gathers else send
        assert whole is not None
        counts = call.sendcounts or call.recvcounts or (whole.count // size,) * size
        start = sum(counts[:rank])
        own = whole.part(start, start + counts[rank])
        send, recv = (own, recv) if table.gathers else (send, own)
    gives = table.gives_at(rank, call.root)
    gets = table.gets_at(rank, call.root) and not call.only_read_at(rank)
    return (send or recv) if gives else None, (recv or send) if gets else None


def starts_of(call: Call, size: int, counts: Sequence[int] | None = None) -> list[int]:
    """Where each block, and the end, is in the whole vector, in bytes. In an alltoallv, ``counts`` say in which one."""
    buffer, counts = call.send or call.recv, counts or call.sendcounts or call.recvcounts
    if buffer is None:
        return [0]
    if counts is None:
        blocks = size if call.collective.by_rank else 1
        counts = (call.extent(size) // blocks,) * blocks
    return [0, *accumulate(n * buffer.dtype.itemsize for n in counts)]
