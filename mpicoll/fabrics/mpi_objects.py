"""Objects of an MPI library's ranks, as bytes in slots.

Each rank puts its object into a slot: the length, then the bytes, if there is room for all of them. One collective of
the MPI library moves the slots. Most objects are short, and then it was the only one. The ranks that must know it see
from the slots who has a longer object, and move those objects whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct
from typing import Any

from mpi4py import MPI

from mpicoll.calls import choose
from mpicoll.errors import MessageError
from mpicoll.fabrics.fabric import Data, ObjectTransport, Sending
from mpicoll.fabrics.mpi_messages import MPIMessages
from mpicoll.fabrics.node_messages import NodeMessages
from mpicoll.fabrics.transports.memory import bytes_of, room_for
from mpicoll.machine.backoff import Backoff

SLOT = 256
"""Bytes of a slot."""
ROOM = SLOT - 8
"""Bytes of the longest object that a slot holds."""
_slot = Struct(f"=q{ROOM}s")  # it cuts off what is too long, and fills up what is too short
_pack, _unpack, _unpack_one = _slot.pack_into, _slot.iter_unpack, _slot.unpack_from

_TOO_LONG = 1 << 48
_BCAST, _GATHER, _ALLGATHER, _SCATTER, _ALLTOALL = (kind << 48 for kind in range(0x4F01, 0x4F06))
"""Added to the length of an object. It tells objects of such a call from anything else that comes."""
_NAMES = {_BCAST: "bcast", _GATHER: "gather", _ALLGATHER: "allgather", _SCATTER: "scatter", _ALLTOALL: "alltoall"}
_TAG = 0x4F
"""The tag of messages with long objects, among the communicator's collectives."""


class _Slots:
    """The memory of one call: a slot, and two for each rank."""

    __slots__ = ("all", "every", "given", "one", "taken")

    def __init__(self, size: int) -> None:
        self.one, self.every = bytearray(SLOT), bytearray(SLOT * size)
        self.given: list[Any] = [self.one, SLOT, MPI.BYTE]
        self.all: list[Any] = [self.every, SLOT, MPI.BYTE]
        self.taken: list[Any] | None = None
        """The second slot for each rank, once a call needs it."""


_free: dict[int, list[_Slots]] = {}
"""Slots that no call uses now, by the number of ranks. A call takes them out and puts them back: another thread may
make a call of another communicator meanwhile, and so may the handler of a signal."""


class MPIObjects(ObjectTransport):
    """Objects among the ranks of a communicator ``comm``, and those that ``messages`` carry. ``check`` raises
    MPI.Exception if ranks are lost; None where they cannot be."""

    def __init__(
        self, comm: MPI.Intracomm, messages: MPIMessages | NodeMessages, check: Callable[[], None] | None
    ) -> None:
        self._comm, self._messages, self._check = comm, messages, check or (lambda: None)
        self._rank, self._size = comm.rank, comm.size
        # A collective that has lost ranks may write nothing: then the slots must not hold what came in a call before.
        self._free: list[_Slots] | deque[_Slots] = deque(maxlen=0) if check else _free.setdefault(comm.size, [])

    def _slots(self) -> _Slots:
        try:
            return self._free.pop()
        except IndexError:
            return _Slots(self._size)

    def _call(self, method: Callable[..., object], *arguments: Any) -> None:
        """A call of MPI, and a look whether ranks were lost in it."""
        method(*arguments)
        self._check()

    def bcast(self, data: bytes | None, root: int) -> Data:
        if self._size == 1 and data is not None:
            return data
        slots = self._slots()
        if data is not None:
            _pack(slots.one, 0, _BCAST + len(data), data)
        self._call(self._comm.Bcast, slots.given, root)
        if data is not None:
            self._free.append(slots)
            if len(data) > ROOM:
                self._call(self._comm.Bcast, bytes_of(data), root)
            return data
        moved = _first(slots.one, _BCAST)
        self._free.append(slots)
        if isinstance(moved, bytes):
            return moved
        self._call(self._comm.Bcast, bytes_of(whole := room_for(moved)), root)
        return whole

    def gather(self, data: bytes, root: int) -> list[Data] | None:
        if self._size == 1:
            return [data]
        slots = self._slots()
        if self._rank != root:
            _pack(slots.one, 0, _GATHER + len(data), data)
            self._call(self._comm.Gather, slots.given, None, root)
            self._free.append(slots)
            if len(data) > ROOM:
                self._call(self._comm.Send, bytes_of(data), root, _TAG)
            return None
        _pack(slots.every, SLOT * root, _GATHER + len(data), data)
        self._call(self._comm.Gather, MPI.IN_PLACE, slots.all, root)
        moved, long = _opened(slots.every, _GATHER)
        self._free.append(slots)
        moved[root] = data
        if long:
            self._exchange([], moved, long)
        return moved

    def allgather(self, data: bytes, call: str = "allgather_object") -> list[Data]:
        if self._size == 1:
            return [data]
        slots = self._slots()
        _pack(slots.every, SLOT * self._rank, _ALLGATHER + len(data), data)
        self._call(self._comm.Allgather, MPI.IN_PLACE, slots.all)
        moved, long = _opened(slots.every, _ALLGATHER)
        self._free.append(slots)
        if long:
            self._allgather_long(data, moved, long)
        return moved

    def scatter(self, datas: Sequence[bytes] | None, root: int) -> Data:
        if self._size == 1 and datas is not None:
            return datas[0]
        slots = self._slots()
        if datas is not None:
            outgoing = _fill(slots.every, _SCATTER, datas)
            self._call(self._comm.Scatter, slots.all, MPI.IN_PLACE, root)
            self._free.append(slots)
            if outgoing:
                self._exchange(outgoing, [], [])
            return datas[root]
        self._call(self._comm.Scatter, None, slots.given, root)
        moved = _first(slots.one, _SCATTER)
        self._free.append(slots)
        if isinstance(moved, bytes):
            return moved
        self._call(self._comm.Recv, bytes_of(whole := room_for(moved)), root, _TAG)
        return whole

    def alltoall(self, datas: Sequence[bytes]) -> list[Data]:
        if self._size == 1:
            return [*datas]
        slots = self._slots()
        if slots.taken is None:
            slots.taken = [bytearray(SLOT * self._size), SLOT, MPI.BYTE]
        outgoing = _fill(slots.every, _ALLTOALL, datas)
        self._call(self._comm.Alltoall, slots.all, slots.taken)
        moved, long = _opened(slots.taken[0], _ALLTOALL)
        self._free.append(slots)
        moved[self._rank] = datas[self._rank]
        if long or outgoing:
            self._exchange(outgoing, moved, long)
        return moved

    def _allgather_long(self, data: bytes, moved: list[Data], long: list[tuple[int, int]]) -> None:
        """The long objects of an allgather. All ranks know all lengths."""
        if sum(n for _, n in long) > choose.MAX_COUNT:
            for rank, n in long:
                moved[rank] = data if rank == self._rank else room_for(n)
                self._call(self._comm.Bcast, bytes_of(moved[rank]), rank)
            return
        counts = [0] * self._size
        for rank, n in long:
            counts[rank] = n
        whole = room_for(sum(counts))
        self._call(self._comm.Allgatherv, [data, counts[self._rank], MPI.BYTE], [whole, counts, MPI.BYTE])
        for (rank, n), end in zip(long, accumulate(n for _, n in long), strict=True):
            moved[rank] = whole[end - n : end]

    def _exchange(self, outgoing: list[tuple[int, bytes]], moved: list[Data], incoming: list[tuple[int, int]]) -> None:
        """Send long objects to these ranks, and take those of these lengths from these ranks to ``moved``. What a rank
        has for itself it has already."""
        requests = []
        for rank, n in incoming:
            if rank != self._rank:
                moved[rank] = room = room_for(n)
                requests.append(self._comm.Irecv(bytes_of(room), rank, _TAG))
        for rank, data in outgoing:
            if rank != self._rank:
                requests.append(self._comm.Isend(bytes_of(data), rank, _TAG))
        for request in requests:  # Waitall of Open MPI 4.1 never returns where a message has failed
            request.Wait()
        self._check()

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, data: bytes, dest: int, tag: int, backoff: Backoff | None) -> None:
        if backoff is None:
            self._messages.send(data, dest, tag)
        else:
            super().send(data, dest, tag, backoff)

    def start(self, data: bytes, dest: int, tag: int) -> Sending:
        return self._messages.start(data, dest, tag)

    def take(self, source: int | None, tag: int | None, waits: bool) -> Data | None:
        return self._messages.take(source, tag, waits)


def _fill(memory: bytearray, kind: int, datas: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Put each rank's object into its slot. Returns those that are too long for it, with their ranks."""
    long = []
    for rank, data in enumerate(datas):
        _pack(memory, SLOT * rank, kind + len(data), data)
        if len(data) > ROOM:
            long.append((rank, data))
    return long


def _opened(memory: bytearray, kind: int) -> tuple[list[Data], list[tuple[int, int]]]:
    """The objects in these slots, and the place and length of each one that is too long for its slot."""
    moved: list[Data] = []
    long = []
    for head, data in _unpack(memory):
        n = head - kind
        if not 0 <= n <= ROOM:
            long.append((len(moved), _checked(n, kind)))
        moved.append(data[:n])
    return moved, long


def _first(memory: bytearray, kind: int) -> bytes | int:
    """The object in this slot, or the length of one that is too long for it."""
    head, data = _unpack_one(memory)
    n: int = head - kind
    if 0 <= n <= ROOM:
        found: bytes = data[:n]
        return found
    return _checked(n, kind)


def _checked(n: int, kind: int) -> int:
    """The length of a long object, if it is one."""
    if 0 <= n < _TOO_LONG:
        return n
    raise MessageError(f"{_NAMES[kind]}_object: expected an object, and something else came")
