"""Objects of an MPI library's ranks, as bytes in slots.

Each rank puts its object into a slot: the length, then the bytes, if there is room for all of them. One collective of
the MPI library moves the slots. Most objects are short, and then it was the only one. The ranks that must know it see
from the slots who has a longer object, and move those objects whole."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from itertools import accumulate
from struct import Struct
from typing import Any

from mpi4py import MPI

from mpicoll.calls import choose
from mpicoll.errors import MessageError
from mpicoll.fabrics.fabric import Data, ObjectTransport
from mpicoll.fabrics.transports.memory import bytes_of, room_for

SLOT = 256  # bytes of a slot
ROOM = SLOT - 8  # bytes of the longest object that a slot holds
_slot = Struct(f"=q{ROOM}s")  # it cuts off what is too long, and fills up what is too short
_pack, _unpack = _slot.pack_into, _slot.iter_unpack

_TOO_LONG = 1 << 48
_BCAST, _GATHER, _ALLGATHER, _SCATTER, _ALLTOALL = (kind << 48 for kind in range(0x4F01, 0x4F06))
"""Added to the length of an object. It tells objects of such a call from anything else that comes."""
_NAMES = {_BCAST: "bcast", _GATHER: "gather", _ALLGATHER: "allgather", _SCATTER: "scatter", _ALLTOALL: "alltoall"}
_TAG = 0x4F  # the tag of messages with long objects, among the communicator's collectives


_Slots = list[Any]  # memory for slots, as mpi4py takes it
_free: defaultdict[int, MutableSequence[_Slots]] = defaultdict(list)
"""Slots that no call uses now, by their number. A call takes them out and puts them back: another thread may make a
call of another communicator meanwhile, and so may the handler of a signal."""


class MPIObjects(ObjectTransport):
    """Objects among the ranks of a communicator. ``check`` raises MPI.Exception if ranks are lost; None where they
    cannot be."""

    def __init__(self, comm: MPI.Intracomm, check: Callable[[], None] | None) -> None:
        self._comm, self._rank, self._size = comm, comm.rank, comm.size
        self._check = check or (lambda: None)
        # A collective that has lost ranks may write nothing: then the slots must not hold what came in a call before.
        self._free = _free if check is None else defaultdict[int, MutableSequence[_Slots]](lambda: deque(maxlen=0))

    def _slots(self, number: int) -> _Slots:
        try:
            return self._free[number].pop()
        except IndexError:
            return [bytearray(SLOT * number), SLOT, MPI.BYTE]

    def _opened(self, slots: _Slots, kind: int) -> tuple[list[Data], dict[int, int]]:
        """The objects in these slots, which are free then, and the length of each one that is too long for its slot, by
        its place."""
        moved: list[Data] = []
        long = {}
        for head, data in _unpack(slots[0]):
            n = head - kind
            if not 0 <= n <= ROOM:
                if not 0 <= n < _TOO_LONG:
                    raise MessageError(f"{_NAMES[kind]}_object: expected an object, and something else came")
                long[len(moved)] = n
            moved.append(data[:n])
        self._free[len(moved)].append(slots)
        return moved, long

    def _call(self, method: Callable[..., object], *arguments: Any) -> None:
        """A call of MPI, and a look whether ranks were lost in it."""
        method(*arguments)
        self._check()

    def bcast(self, data: bytes | None, root: int) -> Data:
        if self._size == 1 and data is not None:
            return data
        slot = self._slots(1)
        if data is not None:
            _pack(slot[0], 0, _BCAST + len(data), data)
        self._call(self._comm.Bcast, slot, root)
        if data is not None:
            self._free[1].append(slot)
            if len(data) > ROOM:
                self._call(self._comm.Bcast, bytes_of(data), root)
            return data
        (moved,), long = self._opened(slot, _BCAST)
        if long:
            self._call(self._comm.Bcast, bytes_of(moved := room_for(long[0])), root)
        return moved

    def gather(self, data: bytes, root: int) -> list[Data] | None:
        if self._size == 1:
            return [data]
        if self._rank != root:
            slot = self._slots(1)
            _pack(slot[0], 0, _GATHER + len(data), data)
            self._call(self._comm.Gather, slot, None, root)
            self._free[1].append(slot)
            if len(data) > ROOM:
                self._call(self._comm.Send, bytes_of(data), root, _TAG)
            return None
        slots = self._slots(self._size)
        _pack(slots[0], SLOT * root, _GATHER + len(data), data)
        self._call(self._comm.Gather, MPI.IN_PLACE, slots, root)
        moved, long = self._opened(slots, _GATHER)
        moved[root] = data
        if long:
            self._exchange({}, moved, long)
        return moved

    def allgather(self, data: bytes, call: str = "allgather_object") -> list[Data]:
        if self._size == 1:
            return [data]
        slots = self._slots(self._size)
        _pack(slots[0], SLOT * self._rank, _ALLGATHER + len(data), data)
        self._call(self._comm.Allgather, MPI.IN_PLACE, slots)
        moved, long = self._opened(slots, _ALLGATHER)
        if long:
            self._allgather_long(data, moved, long)
        return moved

    def scatter(self, datas: Sequence[bytes] | None, root: int) -> Data:
        if self._size == 1 and datas is not None:
            return datas[0]
        if datas is not None:
            slots = self._slots(self._size)
            outgoing = _fill(slots, _SCATTER, datas)
            self._call(self._comm.Scatter, slots, MPI.IN_PLACE, root)
            self._free[self._size].append(slots)
            if outgoing:
                self._exchange(outgoing, [], {})
            return datas[root]
        slot = self._slots(1)
        self._call(self._comm.Scatter, None, slot, root)
        (moved,), long = self._opened(slot, _SCATTER)
        if long:
            self._call(self._comm.Recv, bytes_of(moved := room_for(long[0])), root, _TAG)
        return moved

    def alltoall(self, datas: Sequence[bytes]) -> list[Data]:
        if self._size == 1:
            return [*datas]
        given, taken = self._slots(self._size), self._slots(self._size)
        outgoing = _fill(given, _ALLTOALL, datas)
        self._call(self._comm.Alltoall, given, taken)
        self._free[self._size].append(given)
        moved, long = self._opened(taken, _ALLTOALL)
        moved[self._rank] = datas[self._rank]
        if long or outgoing:
            self._exchange(outgoing, moved, long)
        return moved

    def _allgather_long(self, data: bytes, moved: list[Data], long: Mapping[int, int]) -> None:
        """The long objects of an allgather. All ranks know all lengths."""
        if sum(long.values()) > choose.MAX_COUNT:
            for rank, n in long.items():
                moved[rank] = data if rank == self._rank else room_for(n)
                self._call(self._comm.Bcast, bytes_of(moved[rank]), rank)
            return
        counts = [long.get(rank, 0) for rank in range(self._size)]
        whole = room_for(sum(counts))
        self._call(self._comm.Allgatherv, [data, counts[self._rank], MPI.BYTE], [whole, counts, MPI.BYTE])
        for (rank, n), end in zip(long.items(), accumulate(long.values()), strict=True):
            moved[rank] = whole[end - n : end]

    def _exchange(self, outgoing: Mapping[int, bytes], moved: list[Data], incoming: Mapping[int, int]) -> None:
        """Send long objects to these ranks, and take those of these lengths from these ranks to ``moved``. What a rank
        has for itself it has already."""
        requests = []
        for rank, n in incoming.items():
            if rank != self._rank:
                moved[rank] = room = room_for(n)
                requests.append(self._comm.Irecv(bytes_of(room), rank, _TAG))
        for rank, data in outgoing.items():
            if rank != self._rank:
                requests.append(self._comm.Isend(bytes_of(data), rank, _TAG))
        for request in requests:  # Waitall of Open MPI 4.1 never returns where a message has failed
            request.Wait()
        self._check()


def _fill(slots: _Slots, kind: int, datas: Sequence[bytes]) -> dict[int, bytes]:
    """Put each rank's object into its slot. Returns those that are too long for it, by rank."""
    for rank, data in enumerate(datas):
        _pack(slots[0], SLOT * rank, kind + len(data), data)
    return {rank: data for rank, data in enumerate(datas) if len(data) > ROOM}
