"""Ranks that are threads of one process. Needs no MPI."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.errors import MessageError, StateError
from mpicoll.fabrics.fabric import Fabric, Transfer
from mpicoll.fabrics.job import Job, Seat
from mpicoll.fabrics.mailboxes import Awaited, Group, Message
from mpicoll.routes import threads as route
from mpicoll.schedule import Schedule
from mpicoll.transports.threads import Posted

__all__ = ["ThreadFabric"]


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

    @classmethod
    def of(cls, seat: Seat) -> ThreadFabric:
        """A fabric of its own over all ranks of the seat's job. Collective."""
        whole = cls(seat.job, seat.job.world, seat.rank, seat.job.size).split(0, seat.rank)
        assert whole is not None
        return whole

    @staticmethod
    def address(array: Any) -> int:
        return int(array.ctypes.data)

    # -- collectives --------------------------------------------------------------------------------------------------

    def bind(self, call: Call, choice: Choice, workspace: Workspace) -> Plan:
        assert isinstance(choice, Schedule)
        return route.bind(self, call, choice)

    def is_long(self, call: Call) -> bool:
        return True

    def settle(self) -> None:
        """Threads have one memory."""

    def usable(self, b: Buffer) -> bool:
        return b.plain and b.device == "cpu"

    def post(self, dest: int, posted: Posted) -> None:
        """Let ``dest`` read this memory."""
        with self._job.changed:
            self._group.posted[self.rank, dest].append(posted)
            self._job.happened()

    def first_from(self, sources: Sequence[int], what: str) -> tuple[int, Posted]:
        """Wait until one of these ranks has posted memory to this one: its index in ``sources``, and the memory."""
        queues = self._group.posted

        def index() -> int | None:
            return next((i for i, s in enumerate(sources) if queues.get((s, self.rank))), None)

        with self._job.changed:
            self._job.wait_until(lambda: index() is not None, what)
            found = index()
            assert found is not None
            return found, queues[sources[found], self.rank].popleft()

    def taken(self, posted: Posted) -> None:
        """Tell the sender that its memory was read."""
        with self._job.changed:
            posted.taken = True
            self._job.happened()

    def wait_taken(self, posted: Sequence[Posted], what: str) -> None:
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
        message = Message(self.rank, tag, content)
        with self._job.changed:
            waiting = self._group.awaited[dest]
            first = next((a for a in waiting if a.takes(message)), None)
            if first is None:
                self._group.mailboxes[dest].append(message)
            else:
                waiting.remove(first)
                first.message = message
            self._job.happened()

    def _awaited(self, source: int | None, tag: int) -> Awaited:
        """A receive from now on: of the first message in the mailbox that it takes, or else of one to come."""
        awaited = Awaited(source, tag)
        with self._job.changed:
            mailbox = self._group.mailboxes[self.rank]
            awaited.message = next((m for m in mailbox if awaited.takes(m)), None)
            if awaited.message is None:
                self._group.awaited[self.rank].append(awaited)
            else:
                mailbox.remove(awaited.message)
        return awaited

    def arrived(self, awaited: Awaited) -> Message:
        """Its message, when it is here."""
        whom = "any rank" if awaited.source is None else f"rank {awaited.source}"
        with self._job.changed:
            self._job.wait_until(lambda: awaited.message is not None, f"rank {self.rank} for a message from {whom}")
            assert awaited.message is not None
            return awaited.message

    def give_up(self, awaited: Awaited) -> bool:
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

    def prepare_to_tell(self) -> None:
        """Threads always can."""

    def tell(self, word: int, seconds: float) -> list[int | None]:
        return self.meet("a collective", word)

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

    def __init__(self, fabric: ThreadFabric, awaited: Awaited, array: Any) -> None:
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

    def _take(self, found: Message) -> None:
        content, room = found.content.view(np.uint8), self._array.view(np.uint8)
        self.source = found.source
        elements, rest = divmod(content.size, self._array.itemsize)
        self.arrived = None if rest else elements
        if content.size > room.size:
            raise MessageError(f"a message of {elements} elements, from rank {found.source}, for {self._array.size}")
        room[: content.size] = content
