"""What is known of the calls that a program makes of mpi4py: by communicator, and by request."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from mpi4py import MPI

from mpicoll.calls.settings import Settings
from mpicoll.errors import StateError
from mpicoll.launch import lifecycle
from mpicoll.supervise import report, watch
from mpicoll.supervise.record import OPEN, Begun, Ends, Pending, Record, Recorder
from mpicoll.supervise.trace import TracedRecorder
from mpicoll.watching.arguments import Size

MOST_KEPT = 4096
"""Different calls of a communicator that are kept. A program whose sizes all differ begins anew."""
_MOST_NAMED = 3
"""Calls under way that are named at the end."""
_LOOK_AFTER = 64
"""Messages under way, after which those that are complete are forgotten: a program may never ask for them."""


class Calls:
    """The calls of one communicator: what a watcher needs to know of it, and how its ranks reach each other before
    there is a watcher."""

    def __init__(self, comm: MPI.Comm, settings: Settings) -> None:
        self.comm, self.settings = comm, settings
        self.rank, self.size = comm.rank, comm.size
        self.recorder = TracedRecorder() if settings.trace else Recorder()
        self.waits: list[Begun] = []
        self.records: dict[object, Record] = {}
        self.pending: dict[object, Pending] = {}
        ranks = _in_world(comm)
        one_node = len({nodes[rank] for rank in ranks}) == 1
        group = watch.Group(ranks, self.rank, one_node, comm.bcast, comm.allgather)
        self.watched = None
        if ranks:
            timeout, dump, trace = settings.timeout, settings.dump, settings.trace
            self.watched = watch.watch(group, self.recorder, self.waits, timeout, False, dump=dump, trace=trace)

    def named(self, rank: int) -> str:
        return "any rank" if rank == MPI.ANY_SOURCE else f"rank {rank}"

    def others(self, rank: int) -> Sequence[int]:
        """The ranks that this number stands for."""
        if rank == MPI.ANY_SOURCE:
            return range(self.size)
        return () if rank == MPI.PROC_NULL else (rank,)

    def begin(self, record: Record) -> Recorder | None:
        """A collective begins. None if it is not watched any more: two threads make collectives of this communicator at
        once, and nobody knows in which order the other ranks make theirs."""
        try:
            self.recorder.begin(record)
        except StateError:
            self.recorder.close(goes_on=True)
        return self.recorder if self.recorder.state == OPEN else None

    def not_complete(self, operation: str, record: Record) -> Pending:
        """The wait for a collective that does not block."""
        return Pending(operation, record.description, 0, "", f"{record.description} is not complete")

    def came(self, operation: str, source: int, tag: int) -> Pending:
        which = None if tag == MPI.ANY_TAG else tag
        what = f"came from {self.named(source)} ({'any tag' if which is None else f'tag {which}'})"
        return Pending.message(operation, what, 0, "", Ends(self.others(source), which))

    def taken(self, operation: str, dest: int, tag: int) -> Pending:
        what = f"was taken by {self.named(dest)} (tag {tag})"
        return Pending.message(operation, what, 0, "", Ends(targets=self.others(dest), target_tag=tag))

    def exchanged(self, operation: str, dest: int, sendtag: int, source: int, recvtag: int) -> Pending:
        which = None if recvtag == MPI.ANY_TAG else recvtag
        what = f"{self.came(operation, source, recvtag).what}, or none was taken by {self.named(dest)} (tag {sendtag})"
        ends = Ends(self.others(source), which, self.others(dest), sendtag)
        return Pending.message(operation, what, 0, "", ends)

    def record(self, name: str, operation: str, op: object, root: object, size: Size) -> Record:
        """That of a collective, which has the same waits as mpicoll's ``operation``. Its calls are the same if their
        bytes, their reduction and their root are."""
        key = name, op, root, size
        found = self.records.get(key)
        if found is None:
            parts = [name]
            if op is not None:
                parts.append(str(op))
            if size is not None:
                # Where MPI computes nothing, ranks may say the same memory in different datatypes.
                parts.append(f"of {size[0]} bytes{f' of {size[1]}' if op is not None else ''}")
            if root is not None:
                parts.append(f"root {root}")
            if len(self.records) >= MOST_KEPT:
                self.records.clear()
            number = root if isinstance(root, int) else None
            found = self.records[key] = Record(" ".join(parts), nbytes=size[0] if size else 0, root=number)
            found.operation = operation
        return found


class InFlight(NamedTuple):
    """What was begun and not waited for."""

    request: MPI.Request
    calls: Calls
    begun: Begun


class Persistent(NamedTuple):
    """What each start of a persistent request begins. A collective's has a record."""

    calls: Calls
    pending: Pending
    record: Record | None


nodes: list[int] = []
"""The node of each rank of the world."""
communicators: dict[int, Calls] = {}
under_way: dict[int, InFlight] = {}
persistent: dict[int, Persistent] = {}
"""By their handles."""


def is_watched() -> bool:
    """Whether the program's calls are watched already."""
    return bool(nodes)


def _in_world(comm: MPI.Comm) -> list[int]:
    """The rank in the world of each rank. Empty if some of them are in no common world."""
    mine, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    found = mine.Translate_ranks(None, world)
    for group in (mine, world):
        group.Free()
    return [] if MPI.UNDEFINED in found else [*found]


def has_messages(looks: bool, besides: object) -> bool:
    """Whether messages of this rank are under way, besides the one that is given."""
    if looks or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        _forget_complete()
    return any(each.begun is not besides for each in [*under_way.values()])


def _forget_complete() -> None:
    for at, each in [*under_way.items()]:
        if each.request == MPI.REQUEST_NULL or each.request.Get_status():
            under_way.pop(at, None)


def tell_unfinished() -> None:
    """When all ranks are at their ends, name what has not happened: no other rank may ever notice."""
    if not lifecycle.lives():
        return
    _forget_complete()
    left = [f"{pending.operation}: {pending.missing}" for _, _, (pending, _) in under_way.values()]
    if left:
        report.show(f"mpicoll: rank {MPI.COMM_WORLD.rank} is at its end and has calls under way. {_first_of(left)}")
    status = MPI.Status()
    for calls in communicators.values():
        if calls.comm.Iprobe(status=status):
            what = f"{status.Get_count(MPI.BYTE)} bytes from rank {status.source} (tag {status.tag})"
            report.show(f"mpicoll: rank {calls.rank} is at its end and has not received messages. {what} came first")
    for table in (communicators, under_way, persistent):
        table.clear()  # a session of MPI's may go on, and give their handles to others


def _first_of(left: list[str]) -> str:
    more = f", and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
    return "; ".join(left[:_MOST_NAMED]) + more


def begin(request: MPI.Request, calls: Calls, pending: Pending) -> None:
    """What a request stands for has begun."""
    begun = pending, monotonic()
    calls.recorder.begin_message(pending)
    if len(under_way) >= _LOOK_AFTER:
        _forget_complete()
    under_way[request.handle] = InFlight(request, calls, begun)
