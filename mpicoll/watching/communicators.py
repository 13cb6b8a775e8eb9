"""The communicators and requests of mpi4py's that are watched, by their handles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.calls.settings import Settings
from mpicoll.launch import lifecycle
from mpicoll.supervise import report, watch
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending, Record
from mpicoll.watching.arguments import Size
from mpicoll.watching.calls import Calls, UnderWay

_REFUSED = {
    MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_GROUP, MPI.ERR_OP, MPI.ERR_RANK, MPI.ERR_ROOT,
    MPI.ERR_TAG, MPI.ERR_TYPE,
}  # fmt: skip
"""What MPI says of a rank's own arguments, before anything was sent."""


class CommunicatorCalls(Calls):
    """The calls of one communicator."""

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__()
        self.comm, self.size, self.is_inter = comm, comm.size, comm.is_inter
        self.ranks = _in_world(comm.Get_group())
        self.others: Sequence[int] = range(self.size)
        """Where in ``ranks`` those are to whom this rank sends: by the number that the program gives."""
        if isinstance(comm, MPI.Intercomm):
            theirs = _in_world(comm.Get_remote_group())
            self.ranks = sorted([*self.ranks, *theirs]) if self.ranks and theirs else []
            self.others = [*map(self.ranks.index, theirs)] if self.ranks else []

    def record(self, name: str, operation: str, op: str | None = None, root: Any = None, size: Size = None) -> Record:
        """That of a collective with the waits of ``operation``. All that is given must be alike on all ranks."""
        key = name, op, root, size
        found: Record | None = self.known.get(key)
        if found is None:
            nbytes, dtype = size or (0, "")
            # Where MPI computes nothing, ranks may say the same memory in different datatypes.
            of = f"of {nbytes} bytes{f' of {dtype}' if op is not None else ''}" if size else None
            text = " ".join(filter(None, [op, of, None if root is None else f"root {root}"]))
            is_rank = isinstance(root, (int, np.integer)) and 0 <= root < self.size  # MPI refuses others
            number = int(root) if is_rank else None
            found = self.keep(key, Record(operation, text, nbytes, root=number, name=name))
        return found

    def has_failed(self, error: BaseException) -> None:
        if not isinstance(error, MPI.Exception) or error.Get_error_class() in _REFUSED:
            super().has_failed(error)
            return
        # Different calls are the likely reason. If they are, the job ends here.
        if self.watched is not None:
            watch.compare(self.watched)
        self.recorder.close()

    def message(
        self,
        operation: str,
        dest: int | None = None,
        sendtag: int | None = None,
        source: int | None = None,
        recvtag: int = MPI.ANY_TAG,
    ) -> Pending:
        """The wait for a message that comes from ``source``, or until one is taken by ``dest``, or for both."""
        tag = None if recvtag == MPI.ANY_TAG else recvtag
        taken = "" if dest is None else f"was taken by {self._named(dest)} (tag {sendtag})"
        with_tag = "any tag" if tag is None else f"tag {tag}"
        came = "" if source is None else f"came from {self._named(source)} ({with_tag})"
        what = f"{came}, or none {taken}" if came and taken else came or taken
        ends = Ends(self._others(source), tag, self._others(dest), sendtag)
        return Pending.message(operation, what, 0, "", ends)

    def _others(self, rank: int | None) -> Sequence[int]:
        if rank == MPI.ANY_SOURCE:
            return self.others
        return (self.others[rank],) if rank is not None and 0 <= rank < len(self.others) else ()

    def _named(self, rank: int) -> str:
        numbers = self._others(rank)
        return "any rank" if rank == MPI.ANY_SOURCE else f"rank {numbers[0] if numbers else rank}"


class Persistent(NamedTuple):
    """What each start of a persistent request begins, which the method of this name has made."""

    calls: CommunicatorCalls
    what: Record | Pending
    name: str


communicators: dict[int, CommunicatorCalls] = {}  # by their handles
_parts: Counter[str] = Counter()  # how many communicators were made in the same way of the same ranks


def watch_world(settings: Settings) -> None:
    """Watch over MPI.COMM_WORLD from now on. Collective."""
    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    one_node = node.size == world.size
    node.Free()
    calls = CommunicatorCalls(world)
    calls.watch(watch.Group(calls.ranks, world.rank, one_node, world.allgather), settings)
    if calls.watched is not None:
        communicators[world.handle] = calls


def watch_part(comm: MPI.Comm, of: CommunicatorCalls | None, tag: object) -> None:
    """Watch over a communicator, which was made ``of`` another one's ranks, or of those of the world that have met by
    this ``tag``. Its ranks give it the same name, as they have made the same ones before."""
    parent = of or communicators.get(MPI.COMM_WORLD.handle)
    if comm == MPI.COMM_NULL or parent is None or parent.watched is None:
        return
    calls = CommunicatorCalls(comm)
    if len(calls.ranks) > 1:
        made = blake2b(repr((of and parent.watched.name, tag, calls.ranks)).encode(), digest_size=6).hexdigest()
        _parts[made] += 1
        name = f"{made}.{_parts[made]}"
        calls.watched = watch.watch_part(parent.watched, name, calls.ranks, calls.recorder, calls.waits)
        communicators[comm.handle] = calls


def _is_complete(request: MPI.Request) -> bool:
    """Whether what a request stands for is complete, by whoever has asked."""
    try:
        return request == MPI.REQUEST_NULL or request.Get_status()
    except MPI.Exception:  # a library in C has completed it
        return True


under_way = UnderWay(_is_complete)
persistent: dict[int, Persistent] = {}


def _in_world(mine: MPI.Group) -> list[int]:
    """The rank in the world of each rank. Empty if some of them are in no common world."""
    world = MPI.COMM_WORLD.Get_group()
    found = mine.Translate_ranks(None, world)
    for group in (mine, world):
        group.Free()
    return [] if MPI.UNDEFINED in found else [*found]


def has_messages(looks: bool, besides: object) -> int:
    if looks or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        under_way.forget_complete(besides)
    return under_way.has_messages(besides)


def tell_unfinished() -> None:
    """When all ranks are at their ends, name what has not happened: no other rank may ever notice."""
    if not lifecycle.lives():
        return
    under_way.forget_complete()
    status, rank = MPI.Status(), MPI.COMM_WORLD.rank
    if left := [f"{pending.operation}: {pending.missing}" for _, _, (pending, _), _ in under_way.values()]:
        report.say_left(rank, "calls under way", left)
    for calls in communicators.values():
        if calls.comm.Iprobe(status=status):
            source = calls.ranks[calls.others[status.source]]
            came = f"{status.Get_count(MPI.BYTE)} bytes from rank {source} (tag {status.tag}) came first"
            report.say_left(rank, "not received messages", [came])
    for table in (communicators, under_way, persistent):
        table.clear()  # a session of MPI's may go on, and give their handles to others
