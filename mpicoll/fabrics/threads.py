"""Ranks that are threads of one process. Needs no MPI."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.algorithms.steps import Nodes
from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call, details_of
from mpicoll.calls.choose import Choice, CommInfo, schedule_of
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.devices.device import Device
from mpicoll.errors import DeviceError, MessageError, StateError
from mpicoll.fabrics.fabric import AtOnce, Data, Envelope, Fabric, Messages, NeverRaised, ObjectTransport, Transfer
from mpicoll.fabrics.routes import scheduled, wide
from mpicoll.fabrics.routes.devices.scratch import Scratch
from mpicoll.fabrics.thread_job import Awaited, Group, Job, Message, Seat
from mpicoll.fabrics.transports.transport import BoundTransport, Region
from mpicoll.supervise.record import Record


class ThreadFabric(Fabric):
    """A group of threads as ranks, seen from one of them."""

    failure = NeverRaised
    nobody, anybody, any_tag = -(2**31), -(2**31) + 1, -(2**31) + 2
    most_tag = 2**31 - 1
    any_thread = True

    def __init__(self, job: Job, group: Group, rank: int, size: int) -> None:
        self._job, self._group = job, group
        self._workspace, self._wide = Workspace(), Workspace()
        self.rank, self.size, self.info = rank, size, CommInfo(Nodes.one(size), "", settings=job.settings)
        self.messages, self.objects = _Messages(job, group, rank), _Objects(self)
        if (mpi := sys.modules.get("mpi4py.MPI")) is not None:  # else the program has no names for them
            self.nobody, self.anybody, self.any_tag = mpi.PROC_NULL, mpi.ANY_SOURCE, mpi.ANY_TAG

    @classmethod
    def of(cls, seat: Seat) -> ThreadFabric:
        return cls(seat.job, seat.job.world, seat.rank, seat.job.size).node()

    address = staticmethod(lambda array: int(array.ctypes.data))

    # -- collectives --------------------------------------------------------------------------------------------------

    def bind(self, call: Call, choice: Choice, record: Record) -> list[Plan]:
        """Short floats are reduced in float32 and rounded once: between threads that costs nothing."""
        schedule = schedule_of(choice, call, self.rank, self.info.nodes)
        name = f"{call.operation} {details_of(call, schedule.algorithm, self.size)}".rstrip()

        def bound(call: Call) -> list[Plan]:
            make = partial(_Transport, self._job, self._group, self.rank, name, call.reduction)
            return scheduled.bind(self.rank, self.size, call, schedule, self._workspace, make)

        if call.reduction is None or not call.reduction.rounds:
            return bound(call)
        return wide.bind(call, bound, self._wide, call.terms(self.rank, self.size) > 0)

    def bind_on_device(self, call: Call, choice: Choice, device: Device, scratch: Scratch) -> Plan:
        raise DeviceError(call.operation, "algorithm", "'staged' or 'ipc' between threads", "'device'")

    def together(self, nbytes: int) -> Sequence[NDArray[np.uint8]]:
        return self.meet("shared", np.zeros(nbytes, np.uint8))

    def meet(self, operation: str, value: Any) -> list[Any]:
        """Every rank's value, when all ranks meet here. Raises StateError on all if their operations differ."""
        group = self._group
        with self._job.changed:
            turn = group.met[self.rank]
            group.met[self.rank] += 1
            table = group.meetings[turn]
            table[self.rank] = (operation, value)
            self._job.happened()
            self._job.wait_until(lambda: len(table) == self.size, f"rank {self.rank} in {operation}")
            group.meetings.pop(turn, None)  # the other ranks have a reference to the table
        called = {name for name, _ in table.values()}
        if len(called) > 1:
            calls = ", ".join(f"rank {r} {table[r][0]}" for r in range(self.size))
            raise StateError(f"{operation}: the ranks called different collectives: {calls}")
        return [table[r][1] for r in range(self.size)]

    def bounded_allgather(self) -> Callable[[int, float], list[int | None]]:
        return lambda number, seconds: self.meet("a collective", number)

    # -- fabrics made of this one -------------------------------------------------------------------------------------

    def node(self) -> ThreadFabric:
        return ThreadFabric(self._job, self.meet("node", Group())[0], self.rank, self.size)

    def split(self, color: int | None, key: int) -> ThreadFabric | None:
        given = self.meet("split", (color, key, Group()))  # the group of a part's first member becomes that part's
        if color is None:
            return None
        members = [r for _, r in sorted((k, r) for r, (c, k, _) in enumerate(given) if c == color)]
        return ThreadFabric(self._job, given[members[0]][2], members.index(self.rank), len(members))

    def subset(self, ranks: Sequence[int]) -> Fabric:
        members = tuple(ranks)
        with self._job.changed:
            # The n-th subset of these ranks is the same one on each of them.
            begun = self._group.subsets[frozenset(members)]
            part = next((each for each in begun if self.rank not in each.made), None)
            if part is None:
                begun.append(part := Group(members))
            elif part.members != members:
                named = f"rank {self.rank} names {[*members]}, and rank {min(part.made)} {[*part.members]}"
                raise StateError(f"subset: the ranks named other ranks, or another order: {named}")
            part.made.add(self.rank)
            if len(part.made) == len(members):
                del begun[0]
        return ThreadFabric(self._job, part, members.index(self.rank), len(members))

    def beside(self) -> Callable[[], Fabric]:
        part = self.subset(range(self.size))  # which waits for nobody
        return lambda: part

    def in_world(self) -> list[int]:
        return []

    def free(self) -> None:
        """Nothing is held."""


class _Messages(Messages):
    """Messages between threads. They are copied when they are sent, so that to send never waits."""

    def __init__(self, job: Job, group: Group, rank: int) -> None:
        self._job, self._group, self._rank = job, group, rank

    def outgoing(self, b: Buffer, dest: int, tag: int) -> Transfer | None:
        if not b.plain:
            return None
        sent, array = AtOnce(), kernels.values(b)
        sent.start = lambda: self.put(dest, tag, array.copy())
        return sent

    def incoming(self, b: Buffer, source: int | None, tag: int | None) -> Transfer | None:
        return _Receiving(self, kernels.values(b), source, tag) if b.plain else None

    def probe(self, source: int | None, tag: int | None, waits: bool = False) -> Envelope | None:
        wanted = Awaited(source, tag)

        def first() -> Message | None:
            return next((m for m in self._group.mailboxes[self._rank] if wanted.takes(m)), None)

        with self._job.changed:
            if waits:
                self._wait_until(lambda: first() is not None, wanted)
            found = first()
        return None if found is None else Envelope(found.source, found.tag, found.content.nbytes)

    def put(self, dest: int, tag: int, content: Any) -> None:
        """Give the message to the receive that has waited for it longest. If there is none, put it into the mailbox."""
        message = Message(self._rank, tag, content)
        with self._job.changed:
            waiting = self._group.awaited[dest]
            first = next((a for a in waiting if a.takes(message)), None)
            if first is None:
                self._group.mailboxes[dest].append(message)
            else:
                waiting.remove(first)
                first.message = message
            self._job.happened()

    def awaited(self, source: int | None, tag: int | None) -> Awaited:
        """A new receive. It takes the first message for it in the mailbox, or else waits for one to come."""
        awaited, mailbox = Awaited(source, tag), self._group.mailboxes[self._rank]
        with self._job.changed:
            awaited.message = next((m for m in mailbox if awaited.takes(m)), None)
            if awaited.message is None:
                self._group.awaited[self._rank].append(awaited)
            else:
                mailbox.remove(awaited.message)
        return awaited

    def arrived(self, awaited: Awaited) -> Message:
        with self._job.changed:
            self._wait_until(lambda: awaited.message is not None, awaited)
        assert awaited.message is not None
        return awaited.message

    def _wait_until(self, has_come: Callable[[], bool], awaited: Awaited) -> None:
        sender = "any rank" if awaited.source is None else f"rank {awaited.source}"
        self._job.wait_until(has_come, f"rank {self._rank} waits for a message from {sender}")

    def give_up(self, awaited: Awaited) -> bool:
        """End a receive that waits. Returns False if its message has come already."""
        with self._job.changed:
            if awaited.message is None:
                self._group.awaited[self._rank].remove(awaited)
            return awaited.message is None

    def start(self, data: bytes, dest: int, tag: int) -> Callable[[], bool]:
        self.put(dest, tag, np.frombuffer(data, np.uint8))
        return lambda: True  # it is copied

    send = start

    def take(self, source: int | None, tag: int | None, waits: bool) -> Data:
        """It always waits: threads notice by themselves that no message can come."""
        return memoryview(self.arrived(self.awaited(source, tag)).content)


class _Objects(ObjectTransport):
    """Objects of threads. They are pickled, so that each rank gets its own."""

    def __init__(self, fabric: ThreadFabric) -> None:
        self._fabric, self._meet = fabric, fabric.meet

    def bcast(self, data: bytes | None, root: int) -> Data:
        moved: Data = self._meet(f"bcast_object root {root}", data)[root]
        return moved

    def gather(self, data: bytes, root: int) -> list[Data] | None:
        moved = self._meet(f"gather_object root {root}", data)
        return moved if self._fabric.rank == root else None

    def allgather(self, data: bytes, call: str = "allgather_object") -> list[Data]:
        return self._meet(call, data)

    def scatter(self, datas: Sequence[bytes] | None, root: int) -> Data:
        moved: Data = self._meet(f"scatter_object root {root}", datas)[root][self._fabric.rank]
        return moved

    def alltoall(self, datas: Sequence[bytes]) -> list[Data]:
        return [each[self._fabric.rank] for each in self._meet("alltoall_object", datas)]


class _Receiving(Transfer):
    """A message from a thread, into ``array``. While it is under way, what waits in the fabric stands for it."""

    def __init__(self, messages: _Messages, array: Any, source: int | None, tag: int | None) -> None:
        self._messages, self._array, self._from, self._tag = messages, array, source, tag

    def start(self) -> Awaited:
        return self._messages.awaited(self._from, self._tag)

    def wait(self, begun: Awaited) -> None:
        self._take(self._messages.arrived(begun))

    def test(self, begun: Awaited) -> bool:
        if begun.message is None:
            return False
        self._take(begun.message)
        return True

    def cancel(self, begun: Awaited) -> bool:
        return self._messages.give_up(begun)

    def source(self, begun: Any = None) -> int:
        return int(begun.message.source)

    def tag(self, begun: Any) -> int:
        return int(begun.message.tag)

    def arrived(self, begun: Any = None) -> int | None:
        elements, rest = divmod(begun.message.content.nbytes, self._array.itemsize)
        return None if rest else elements

    def _take(self, message: Message) -> None:
        sent, expected = message.content.dtype, self._array.dtype
        if sent != expected:  # MPI would move the bytes, and whoever learns would wonder at the numbers
            raise MessageError(f"a message of {sent} came from rank {message.source}: expected {expected}")
        content, room = message.content.view(np.uint8), self._array.view(np.uint8)
        if content.size > room.size:
            came = f"a message of {content.size // self._array.itemsize} elements came from rank {message.source}"
            raise MessageError(f"{came}: expected {self._array.size}")
        room[: content.size] = content


_Take = Callable[[Region], None]  # takes what another rank has posted


class _Transport(BoundTransport):
    """In each step, a rank lets its peers read what it sends, reads what they have posted, and waits until all of its
    own was read. ``call`` is the same on all ranks that make the same call."""

    def __init__(self, job: Job, group: Group, rank: int, call: str, reduction: Reduction | None, *_: object) -> None:
        self._job, self._posted, self._rank, self._reduction = job, group.posted, rank, reduction
        self._call, self._what = call, f"rank {rank} in {call}"
        self.steps = []
        self._sends: list[tuple[int, Region]] = []
        self._receives: list[tuple[int, _Take]] = []
        self._copies: list[Plan] = []

    def send(self, peer: int, region: Region) -> None:
        self._sends.append((peer, region))

    def recv(self, peer: int, region: Region) -> None:
        self._receives.append((peer, partial(self._take, peer, region)))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        self._receives.append((peer, partial(self._combine, mine, into, mine_first)))

    def copy(self, source: Region, target: Region) -> None:
        self._copies.append(partial(self._take, self._rank, target, source))

    def end_step(self) -> None:
        self.steps.append(partial(self._run, self._sends, self._receives, self._copies))
        self._sends, self._receives, self._copies = [], [], []

    def _run(self, sends: list[tuple[int, Region]], receives: list[tuple[int, _Take]], copies: list[Plan]) -> None:
        job, posted, rank = self._job, self._posted, self._rank
        with job.changed:
            for peer, region in sends:
                posted[rank, peer].append((self._call, region))
            job.happened()
        for peer, take in receives:
            with job.changed:
                job.wait_until(partial(bool, posted[peer, rank]), self._what)
                call, region = posted[peer, rank][0]
            if call != self._call:
                raise MessageError(f"{self._what}: rank {peer} is in {call}")
            take(region)
            with job.changed:
                posted[peer, rank].popleft()
                job.happened()
        for copy in copies:
            copy()
        with job.changed:
            job.wait_until(lambda: not any(posted[rank, peer] for peer, _ in sends), self._what)

    def _take(self, peer: int, mine: Region, theirs: Region) -> None:
        given, expected = (sum(run.size for run in region) for region in (theirs, mine))
        if given != expected:  # NumPy would repeat a single element
            operation = self._call.partition(" ")[0]
            raise MessageError(f"{operation}: expected {expected} elements from rank {peer}; it sends {given}")
        for from_, into in zip(theirs, mine, strict=True):
            np.copyto(into, from_)

    def _combine(self, mine: Region, into: Region, mine_first: bool, theirs: Region) -> None:
        assert self._reduction is not None
        for run, received, target in zip(mine, theirs, into, strict=True):
            first, second = (run, received) if mine_first else (received, run)
            kernels.combination(self._reduction, first, second, target)()
