"""The communicators and requests of mpi4py's that are watched, by their handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from mpicoll.calls.settings import Settings
from mpicoll.launch import lifecycle
from mpicoll.supervise import report, watch
from mpicoll.supervise.record import Ends, Pending, Record
from mpicoll.watching.arguments import Size
from mpicoll.watching.calls import Calls, UnderWay

_MOST_NAMED = 3
"""Calls under way that are named at the end."""


class CommunicatorCalls(Calls):
    """The calls of one communicator."""

    def __init__(self, comm: MPI.Comm, settings: Settings) -> None:
        self.comm, self.size = comm, comm.size
        self.ranks = _in_world(comm.Get_group())
        self.others: Sequence[int] = range(self.size)
        """Where in ``ranks`` those are to whom this rank sends: by the number that the program gives."""
        meeting = comm
        self.is_inter = comm.is_inter
        if isinstance(comm, MPI.Intercomm):
            theirs = _in_world(comm.Get_remote_group())
            self.ranks = sorted([*self.ranks, *theirs]) if self.ranks and theirs else []
            if self.ranks:
                self.others, meeting = [*map(self.ranks.index, theirs)], _among(self.ranks)
        one_node = len({nodes[rank] for rank in self.ranks}) == 1
        group = watch.Group(self.ranks, meeting.rank, one_node, meeting.bcast, meeting.allgather)
        super().__init__(group if self.ranks else None, settings)
        if meeting is not comm:
            meeting.Free()

    def record(self, name: str, operation: str, op: object, root: object, size: Size) -> Record:
        """That of a collective, which has the same waits as mpicoll's ``operation``. Its calls are the same if their
        bytes, their reduction and their root are."""
        key = name, op, root, size
        found: Record | None = self.known.get(key)
        if found is None:
            parts = []
            if op is not None:
                parts.append(str(op))
            if size is not None:
                # Where MPI computes nothing, ranks may say the same memory in different datatypes.
                parts.append(f"of {size[0]} bytes{f' of {size[1]}' if op is not None else ''}")
            if root is not None:
                parts.append(f"root {root}")
            number = root if isinstance(root, int) and 0 <= root < self.size else None  # MPI refuses another one
            nbytes = 0 if size is None else size[0]
            found = self.keep(key, Record(operation, " ".join(parts), nbytes, root=number, name=name))
        return found

    def came(self, operation: str, source: int, tag: int) -> Pending:
        """The wait for a message that comes."""
        which = None if tag == MPI.ANY_TAG else tag
        what = f"came from {self._named(source)} ({'any tag' if which is None else f'tag {which}'})"
        return Pending.message(operation, what, 0, "", Ends(self._others(source), which))

    def taken(self, operation: str, dest: int, tag: int) -> Pending:
        """The wait until a message is taken."""
        what = f"was taken by {self._named(dest)} (tag {tag})"
        return Pending.message(operation, what, 0, "", Ends(targets=self._others(dest), target_tag=tag))

    def exchanged(self, operation: str, dest: int, sendtag: int, source: int, recvtag: int) -> Pending:
        """The wait for both."""
        which = None if recvtag == MPI.ANY_TAG else recvtag
        what = f"{self.came(operation, source, recvtag).what}, or none was taken by {self._named(dest)} (tag {sendtag})"
        ends = Ends(self._others(source), which, self._others(dest), sendtag)
        return Pending.message(operation, what, 0, "", ends)

    def _others(self, rank: int) -> Sequence[int]:
        """The ranks that this number stands for."""
        if rank == MPI.ANY_SOURCE:
            return self.others
        return (self.others[rank],) if 0 <= rank < len(self.others) else ()

    def _named(self, rank: int) -> str:
        numbers = self._others(rank)
        return "any rank" if rank == MPI.ANY_SOURCE else f"rank {numbers[0] if numbers else rank}"


class Persistent(NamedTuple):
    """What each start of a persistent request begins. A collective's has a record."""

    calls: CommunicatorCalls
    pending: Pending
    record: Record | None


nodes: list[int] = []
"""The node of each rank of the world."""
communicators: dict[int, CommunicatorCalls] = {}


def _is_complete(request: MPI.Request) -> bool:
    """Whether what a request stands for is complete, by whoever has asked."""
    try:
        return request == MPI.REQUEST_NULL or request.Get_status()
    except MPI.Exception:  # a library in C has completed it
        return True


under_way = UnderWay(_is_complete)
persistent: dict[int, Persistent] = {}


def is_watched() -> bool:
    """Whether the program's calls are watched already."""
    return bool(nodes)


def _in_world(mine: MPI.Group) -> list[int]:
    """The rank in the world of each rank. Empty if some of them are in no common world."""
    world = MPI.COMM_WORLD.Get_group()
    found = mine.Translate_ranks(None, world)
    for group in (mine, world):
        group.Free()
    return [] if MPI.UNDEFINED in found else [*found]


def _among(ranks: list[int]) -> MPI.Intracomm:
    """A communicator of these ranks of the world, in order."""
    world = MPI.COMM_WORLD.Get_group()
    group = world.Incl(ranks)
    made = MPI.COMM_WORLD.Create_group(group)
    for each in (group, world):
        each.Free()
    return made


def has_messages(looks: bool, besides: object) -> bool:
    """Whether messages of this rank are under way, besides the one that is given."""
    if looks or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        under_way.forget_complete(besides)
    return under_way.has_messages(besides)


def tell_unfinished() -> None:
    """When all ranks are at their ends, name what has not happened: no other rank may ever notice."""
    if not lifecycle.lives():
        return
    under_way.forget_complete()
    left = [f"{pending.operation}: {pending.missing}" for _, _, (pending, _), _ in under_way.values()]
    if left:
        report.show(f"mpicoll: rank {MPI.COMM_WORLD.rank} is at its end and has calls under way. {_first_of(left)}")
    status, rank = MPI.Status(), MPI.COMM_WORLD.rank
    for calls in communicators.values():
        if calls.ranks and calls.comm.Iprobe(status=status):
            source = calls.ranks[calls.others[status.source]]
            what = f"{status.Get_count(MPI.BYTE)} bytes from rank {source} (tag {status.tag})"
            report.show(f"mpicoll: rank {rank} is at its end and has not received messages. {what} came first")
    for table in (communicators, under_way, persistent):
        table.clear()  # a session of MPI's may go on, and give their handles to others


def _first_of(left: list[str]) -> str:
    more = f", and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
    return "; ".join(left[:_MOST_NAMED]) + more
