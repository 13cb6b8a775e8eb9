"""Ranks that are threads of one process. Needs no MPI.

All ranks of a job share one lock; whoever waits lets go of it, and is woken by whatever happens. A rank that fails, or
waits for what can no longer come, breaks the job: every other rank's wait raises then.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll import kernels
from mpicoll.buffers import Buffer
from mpicoll.call import Call
from mpicoll.errors import MessageError, StateError
from mpicoll.fabrics import Fabric, Transfer
from mpicoll.plan import Plan, Workspace
from mpicoll.routes import threads as route
from mpicoll.schedule import Schedule
from mpicoll.select import Rules, preferred

__all__ = ["Group", "Job", "Seat", "ThreadFabric", "here", "work_for"]


class Here(threading.local):
    """What the present thread is: ``seat`` is the place of the rank that it is, or works for, None if it is none."""

    seat: Seat | None = None
    is_rank = False


here = Here()
"""The present thread."""


def work_for(place: Seat | None) -> None:
    """The calling thread works for this rank from now on, without being it."""
    here.seat, here.is_rank = place, False


class Job:
    """The ranks of one run, and what they wait on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rules = Rules(preferred())
        self.changed = threading.Condition()
        self.broken: str | None = None
        """Why nothing can be waited for any more."""
        self._running: dict[int, str | None] = {}  # ranks that have not ended: what each waits for, None while it runs
        self._known = set(threading.enumerate())  # threads that are not the ranks' own, and, later, the ranks

    def begin(self) -> None:
        """All ranks run from now on. Raises StateError where they run already, or have failed."""
        if self.broken:
            raise StateError(f"run: the ranks of this job cannot run any more: {self.broken}")
        if self._running:
            raise StateError("run: the ranks of this job are running already")
        self._running = dict.fromkeys(range(self.size))

    def enter(self, place: Seat) -> None:
        """The calling thread is this rank from now on."""
        here.seat, here.is_rank = place, True
        with self.changed:
            self._known.add(threading.current_thread())

    def leave(self) -> None:
        """The calling thread has ended as a rank."""
        assert here.seat is not None
        rank, here.seat = here.seat.rank, None
        with self.changed:
            del self._running[rank]
            self._check_progress()
            self.changed.notify_all()

    def break_off(self, why: str) -> None:
        """Have every wait raise."""
        with self.changed:
            self.broken = self.broken or why
            self.changed.notify_all()

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, holding ``changed``, until ``ready``. Raises StateError if that cannot happen any more."""
        me = here.seat if here.is_rank else None
        while not ready():
            if self.broken is not None:
                raise StateError(f"{what}: {self.broken}")
            if me is not None:
                self._running[me.rank] = what
                self._check_progress()
            if self.broken is None:
                self.changed.wait()
            if me is not None:
                self._running[me.rank] = None

    def happened(self) -> None:
        """Wake all who wait; ``changed`` is held. They look for themselves."""
        for rank in self._running:
            self._running[rank] = None
        self.changed.notify_all()

    def _check_progress(self) -> None:
        """If all ranks that have not ended wait, each will for ever: unless other threads work for them."""
        waits = list(self._running.values())
        if waits and None not in waits and self.broken is None and self._known.issuperset(threading.enumerate()):
            self.broken = f"every rank that has not ended waits, for ever: {'; '.join(sorted(set(map(str, waits))))}"
            self.changed.notify_all()


class Seat:
    """One rank of a job: its number, and what adapters keep for it from one run to the next."""

    def __init__(self, job: Job, rank: int, world: Group) -> None:
        self.job, self.rank, self._world = job, rank, world
        self.kept: dict[str, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        """What an adapter wants done when the job is over."""

    def close(self) -> None:
        """The job is over."""
        while self.at_end:
            self.at_end.pop()()

    def fabric(self) -> ThreadFabric:
        """A fabric of its own over all ranks of the job. Collective."""
        whole = ThreadFabric(self.job, self._world, self.rank, self.job.size).split(0, self.rank)
        assert whole is not None
        return whole


@dataclass(eq=False)
class _Message:
    """One that was sent."""

    source: int
    tag: int
    content: Any


@dataclass(eq=False)
class _Awaited:
    """A receive that was started, from any rank if ``source`` is None; ``message`` is what came for it."""

    source: int | None
    tag: int
    message: _Message | None = None

    def takes(self, message: _Message) -> bool:
        return message.tag == self.tag and self.source in (None, message.source)


class Group:
    """What the ranks of one communicator share."""

    def __init__(self) -> None:
        self.mailboxes: defaultdict[int, list[_Message]] = defaultdict(list)
        self.awaited: defaultdict[int, list[_Awaited]] = defaultdict(list)
        self.posted: defaultdict[tuple[int, int], deque[route.Posted]] = defaultdict(deque)
        self.meetings: defaultdict[int, dict[int, tuple[str, Any]]] = defaultdict(dict)
        self.met: Counter[int] = Counter()
        self.subsets: dict[tuple[tuple[int, ...], int], Group] = {}
        self.made: Counter[tuple[tuple[int, ...], int]] = Counter()


class ThreadFabric(Fabric):
    """One thread's view of a group of threads."""

    library = ""
    one_node = shares = settled = True
    failure = ()
    most_tag = 2**31 - 1
    any_thread = True

    def __init__(self, job: Job, group: Group, rank: int, size: int) -> None:
        self._job, self._group = job, group
        self.rank, self.size, self.rules = rank, size, job.rules

    @staticmethod
    def address(array: Any) -> int:
        return int(array.ctypes.data)

    # -- collectives --------------------------------------------------------------------------------------------------

    def bind(self, call: Call, how: str | Schedule, workspace: Workspace) -> Plan:
        assert isinstance(how, Schedule)
        return route.bind(self, call, how)

    def is_long(self, call: Call) -> bool:
        return True

    def settle(self) -> None:
        """Threads have one memory."""

    def usable(self, b: Buffer) -> bool:
        return b.plain and b.device == "cpu"

    def post(self, dest: int, posted: route.Posted) -> None:
        """Let ``dest`` read this memory."""
        with self._job.changed:
            self._group.posted[self.rank, dest].append(posted)
            self._job.happened()

    def first_from(self, sources: Sequence[int], what: str) -> tuple[int, route.Posted]:
        """Wait until one of these ranks has posted memory to this one: its place in ``sources``, and the memory."""
        queues = self._group.posted

        def index() -> int | None:
            return next((i for i, s in enumerate(sources) if queues.get((s, self.rank))), None)

        with self._job.changed:
            self._job.wait_until(lambda: index() is not None, what)
            found = index()
            assert found is not None
            return found, queues[sources[found], self.rank].popleft()

    def taken(self, posted: route.Posted) -> None:
        """Tell the sender that its memory was read."""
        with self._job.changed:
            posted.taken = True
            self._job.happened()

    def wait_taken(self, posted: Sequence[route.Posted], what: str) -> None:
        """Wait until all of this memory was read."""
        with self._job.changed:
            self._job.wait_until(lambda: all(p.taken for p in posted), what)

    # -- messages: buffered, so that sending never waits --------------------------------------------------------------

    def start_send(self, b: Buffer, dest: int, tag: int) -> Transfer:
        self._put(dest, tag, kernels.values(b).copy())
        return _Sent()

    def start_recv(self, b: Buffer, source: int | None, tag: int) -> Transfer:
        return _Receiving(self, self._awaited(source, tag), kernels.values(b))

    def _put(self, dest: int, tag: int, content: Any) -> None:
        """Give the message to the receive that has waited longest for one like it; to the mailbox if there is none."""
        message = _Message(self.rank, tag, content)
        with self._job.changed:
            waiting = self._group.awaited[dest]
            first = next((a for a in waiting if a.takes(message)), None)
            if first is None:
                self._group.mailboxes[dest].append(message)
            else:
                waiting.remove(first)
                first.message = message
            self._job.happened()

    def _awaited(self, source: int | None, tag: int) -> _Awaited:
        """A receive from now on: of the first message in the mailbox that it takes, or else of one to come."""
        awaited = _Awaited(source, tag)
        with self._job.changed:
            mailbox = self._group.mailboxes[self.rank]
            awaited.message = next((m for m in mailbox if awaited.takes(m)), None)
            if awaited.message is None:
                self._group.awaited[self.rank].append(awaited)
            else:
                mailbox.remove(awaited.message)
        return awaited

    def arrived(self, awaited: _Awaited) -> _Message:
        """Its message, when it is here."""
        whom = "any rank" if awaited.source is None else f"rank {awaited.source}"
        with self._job.changed:
            self._job.wait_until(lambda: awaited.message is not None, f"rank {self.rank} for a message from {whom}")
            assert awaited.message is not None
            return awaited.message

    def give_up(self, awaited: _Awaited) -> bool:
        """Take no message for it any more; False if it has one."""
        with self._job.changed:
            if awaited.message is None:
                self._group.awaited[self.rank].remove(awaited)
            return awaited.message is None

    # -- objects ------------------------------------------------------------------------------------------------------

    def meet(self, operation: str, value: Any) -> list[Any]:
        """Every rank's value, when all ranks have come. Raises StateError on all if they came for different things."""
        group = self._group
        with self._job.changed:
            turn = group.met[self.rank]
            group.met[self.rank] += 1
            table = group.meetings[turn]
            table[self.rank] = (operation, value)
            self._job.happened()
            self._job.wait_until(lambda: len(table) == self.size, f"rank {self.rank} in {operation}")
            group.meetings.pop(turn, None)  # those who have not looked yet hold the table
        called = {name for name, _ in table.values()}
        if len(called) > 1:
            said = ", ".join(f"rank {r} {table[r][0]}" for r in range(self.size))
            raise StateError(f"{operation}: the ranks called different collectives: {said}")
        return [table[r][1] for r in range(self.size)]

    def bcast(self, obj: Any, root: int) -> Any:
        return pickle.loads(self.meet("bcast_object", pickle.dumps(obj) if self.rank == root else None)[root])

    def gather(self, obj: Any, root: int) -> list[Any] | None:
        found = self.meet("gather_object", pickle.dumps(obj))
        return [pickle.loads(x) for x in found] if self.rank == root else None

    def allgather(self, obj: Any) -> list[Any]:
        return [pickle.loads(x) for x in self.meet("allgather_object", pickle.dumps(obj))]

    def scatter(self, objs: Sequence[Any] | None, root: int) -> Any:
        mine = None if objs is None else [pickle.dumps(x) for x in objs]
        return pickle.loads(self.meet("scatter_object", mine)[root][self.rank])

    def alltoall(self, objs: Sequence[Any]) -> list[Any]:
        found = self.meet("alltoall_object", [pickle.dumps(x) for x in objs])
        return [pickle.loads(x[self.rank]) for x in found]

    def send(self, obj: Any, dest: int, tag: int) -> None:
        self._put(dest, tag, np.frombuffer(pickle.dumps(obj), np.uint8))

    def recv(self, source: int | None, tag: int) -> Any:
        return pickle.loads(self.arrived(self._awaited(source, tag)).content)

    # -- fabrics made of this one -------------------------------------------------------------------------------------

    def node(self) -> Fabric:
        whole = self.split(0, self.rank)
        assert whole is not None
        return whole

    def split(self, color: int | None, key: int) -> ThreadFabric | None:
        said = self.meet("split", (color, key, Group()))
        if color is None:
            return None
        members = [r for _, r in sorted((k, r) for r, (c, k, _) in enumerate(said) if c == color)]
        return ThreadFabric(self._job, said[members[0]][2], members.index(self.rank), len(members))

    def subset(self, ranks: Sequence[int]) -> Fabric:
        those = tuple(ranks)
        with self._job.changed:
            turn = self._group.made[those, self.rank]  # each member's n-th subset of these ranks is the same one
            self._group.made[those, self.rank] += 1
            part = self._group.subsets.setdefault((those, turn), Group())
        return ThreadFabric(self._job, part, those.index(self.rank), len(those))

    def free(self) -> None:
        """Nothing is held."""


class _Sent(Transfer):
    """A message that was sent: its memory was copied."""

    def wait(self) -> None:
        pass

    def test(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False


class _Receiving(Transfer):
    """A message that is to come into ``array``."""

    def __init__(self, fabric: ThreadFabric, awaited: _Awaited, array: Any) -> None:
        self._fabric, self._awaited, self._array = fabric, awaited, array

    def wait(self) -> None:
        self._take(self._fabric.arrived(self._awaited))

    def test(self) -> bool:
        if self._awaited.message is None:
            return False
        self._take(self._awaited.message)
        return True

    def cancel(self) -> bool:
        return self._fabric.give_up(self._awaited)

    def _take(self, found: _Message) -> None:
        content, room = found.content.view(np.uint8), self._array.view(np.uint8)
        self.source = found.source
        elements, rest = divmod(content.size, self._array.itemsize)
        self.arrived = None if rest else elements
        if content.size > room.size:
            raise MessageError(f"a message of {elements} elements, from rank {found.source}, for {self._array.size}")
        room[: content.size] = content
