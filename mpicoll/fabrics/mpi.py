"""Ranks that an MPI library connects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls import measured
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice, Exchange, Native
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.rules import Rules, check, preferred, timeout
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.fabric import Fabric, Transfer
from mpicoll.fabrics.words import Words
from mpicoll.launch.placement import oversubscribed
from mpicoll.machine.cpu import fingerprint
from mpicoll.machine.gpu import takes_device_memory
from mpicoll.machine.library import library
from mpicoll.routes import exchange, large, native, scheduled
from mpicoll.schedule import Schedule
from mpicoll.transports import shared
from mpicoll.transports.memory import datatype, moved

__all__ = ["MPIFabric"]


class MPIFabric(Fabric):
    """Duplicates of an MPI communicator, one for collectives and one for messages, so that neither meets the other."""

    failure = MPI.Exception
    address = staticmethod(MPI.Get_address)

    def __init__(self, comm: MPI.Intracomm, parent: MPIFabric | None = None) -> None:
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise ArgumentError("Communicator", "comm", "an mpi4py intra-communicator that was not freed", repr(comm))
        self._comm, self._messages = comm.Dup(), comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        self.library = MPI.get_vendor()[0]
        self.most_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0  # Open MPI says None of a split communicator
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        # What lies on one node has all its parts there, and what shares memory shares it with all its parts.
        self.one_node = (parent is not None and parent.one_node) or self._is_one_node()
        self._can_share: bool = self.size > 1 and (
            (parent is not None and parent._can_share) or (self.one_node and shared.possible(self._comm))
        )
        self.shares = self._can_share
        self.settled = not self.shares
        self._slots: shared.Slots | None = None
        self._words: Words | None = None
        self.rules = self._told(parent)

    @classmethod
    def of_world(cls, ranks: Sequence[int]) -> MPIFabric:
        """These ranks of MPI's world, this one among them; collective among them alone."""
        return cls._among(MPI.COMM_WORLD, ranks, None)

    @classmethod
    def _among(cls, comm: MPI.Intracomm, ranks: Sequence[int], parent: MPIFabric | None) -> MPIFabric:
        everybody = comm.Get_group()
        those = everybody.Incl(ranks)
        part = comm.Create_group(those)
        for group in (everybody, those):
            group.Free()
        child = cls(part, parent)
        part.Free()
        return child

    def _is_one_node(self) -> bool:
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        alike = node.size == self.size
        node.Free()
        return alike

    def _told(self, parent: MPIFabric | None) -> Rules:
        """Rank 0's rules: the ranks' environments and installations may differ, and their choices must not."""
        if parent is not None and parent.one_node == self.one_node:
            return parent.rules
        together = self.one_node and self.size > 1
        crowded = together and oversubscribed(self._comm)
        mine = None
        if self.rank == 0:
            of_all = Rules(preferred(), check=check(), timeout=timeout()) if parent is None else parent.rules
            mine = replace(of_all, table=measured.table(fingerprint(), library(), crowded) if together else {})
        told: Rules = self._comm.bcast(mine)
        return told

    def bind(self, call: Call, choice: Choice, workspace: Workspace) -> Plan:
        match choice:
            case Native() if call.extent_is_common:
                return self._in_parts(call, lambda part: native.bind(self._comm, part, workspace))
            case Native():
                return large.if_any(self._comm, call, native.bind(self._comm, call, workspace))
            case Exchange():
                return self._in_parts(call, lambda part: exchange.bind(self._comm, part, workspace, self._slots))
            case Schedule():
                # Ranks that do not know how long the call is cannot agree on whether it uses shared memory.
                slots = self._slots if call.extent_is_common else None
                return scheduled.bind(self._comm, call, choice, workspace, slots)

    def _in_parts(self, call: Call, route: Callable[[Call], Plan]) -> Plan:
        return route(call) if call.extent(self.size) <= large.MAX_COUNT else large.bind(self._comm, call, route)

    def is_long(self, call: Call) -> bool:
        return call.extent_is_common and call.nbytes(self.size) >= shared.LEAST

    def settle(self) -> None:
        if not self.settled:
            self._slots = shared.Slots.among(self._comm)
            self.shares = self._slots is not None
            self.settled = True  # last: another thread may look

    def usable(self, b: Buffer) -> bool:
        return b.plain and (b.device == "cpu" or takes_device_memory())

    def start_send(self, b: Buffer, dest: int, tag: int) -> Transfer:
        return _Messages([self._messages.Isend(moved(piece), dest, tag) for piece in large.pieces(b)], None)

    def start_recv(self, b: Buffer, source: int | None, tag: int) -> Transfer:
        of = MPI.ANY_SOURCE if source is None else source
        if b.count > large.MAX_COUNT and source is None:
            status = MPI.Status()  # the parts of one long message must all come from one rank
            self._messages.Probe(of, tag, status)
            of = status.Get_source()
        kind = datatype(b.dtype)
        return _Messages([self._messages.Irecv(moved(piece), of, tag) for piece in large.pieces(b)], kind)

    def node(self) -> Fabric:
        return self._child(self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank))

    def split(self, color: int | None, key: int) -> Fabric | None:
        part = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if color is None else self._child(part)

    def subset(self, ranks: Sequence[int]) -> Fabric:
        return self._among(self._comm, ranks, self)

    def _child(self, comm: MPI.Comm) -> Fabric:
        child = MPIFabric(comm, self)  # type: ignore[arg-type]
        comm.Free()
        return child

    def free(self) -> None:
        self._slots = None
        if self._words is not None:
            self._words.free()
        self._comm.Free()
        self._messages.Free()

    def prepare_to_tell(self) -> None:
        if self._words is None:
            self._words = Words(self._comm.Dup())

    def tell(self, word: int, seconds: float) -> list[int | None]:
        assert self._words is not None
        return self._words.tell(word, seconds)

    def bcast(self, obj: Any, root: int) -> Any:
        return self._comm.bcast(obj, root)

    def gather(self, obj: Any, root: int) -> list[Any] | None:
        return self._comm.gather(obj, root)

    def allgather(self, obj: Any) -> list[Any]:
        return self._comm.allgather(obj)

    def scatter(self, objs: Sequence[Any] | None, root: int) -> Any:
        return self._comm.scatter(objs, root)

    def alltoall(self, objs: Sequence[Any]) -> list[Any]:
        return self._comm.alltoall(objs)

    def send(self, obj: Any, dest: int, tag: int) -> None:
        self._messages.send(obj, dest, tag)

    def recv(self, source: int | None, tag: int) -> Any:
        return self._messages.recv(source=MPI.ANY_SOURCE if source is None else source, tag=tag)


_ONE_BY_ONE = MPI.get_vendor()[0] == "Open MPI"
"""Waitall of its version 4.1 never returns where a message has failed already."""


class _Messages(Transfer):
    """One buffer's messages: several where it is longer than a count can say. ``kind`` is None for what is sent."""

    def __init__(self, parts: list[MPI.Request], kind: MPI.Datatype | None) -> None:
        self._parts, self._kind = parts, kind
        self._statuses = [MPI.Status() for _ in parts]

    def _left(self) -> tuple[list[MPI.Request], list[MPI.Status]]:
        """The messages that are not known to be complete. A signal's handler may raise just after one was found to be:
        then its status is here, and MPI has forgotten it."""
        left = [i for i, part in enumerate(self._parts) if part]
        return [self._parts[i] for i in left], [self._statuses[i] for i in left]

    def wait(self) -> None:
        parts, statuses = self._left()
        if _ONE_BY_ONE:
            for part, status in zip(parts, statuses, strict=True):
                part.Wait(status)
        else:
            MPI.Request.Waitall(parts, statuses)
        self._complete(self._statuses)

    def test(self) -> bool:
        if not MPI.Request.Testall(*self._left()):
            return False
        self._complete(self._statuses)
        return True

    def cancel(self) -> bool:
        for part in self._parts:
            part.Cancel()
        statuses = [MPI.Status() for _ in self._parts]
        MPI.Request.Waitall(self._parts, statuses)
        return all(s.Is_cancelled() for s in statuses)

    def _complete(self, statuses: list[MPI.Status]) -> None:
        if self._kind is not None:
            self.source = statuses[0].Get_source()
            # In elements: bytes would not fit into the count, and a part of an element has none.
            counts = [s.Get_count(self._kind) for s in statuses]
            self.arrived = None if MPI.UNDEFINED in counts else sum(counts)
