"""Random messages of all faces: each arrives once, whole, in order, and where it belongs.

``MPICOLL_DRAWS=100000`` makes so many rounds, of about eight messages each. MPICOLL_SEED repeats them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpicoll

ROUNDS = int(os.environ.get("MPICOLL_DRAWS", "250"))
COUNTS = (0, 1, 2, 7, 100, 1_000, 1_023, 1_024, 1_025, 3_000, 16_000, 16_500, 60_000)
"""Elements of 8 bytes: around what goes at once, what a piece of a long message has, and what lies in a ring."""
LONG = 1 << 19
"""Elements of a message that is as long as any that a program sends often. One of a thousand is."""
UNUSED = 99
"""A tag that no message has."""
LAYOUTS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "whole": lambda x: x[::4].copy(),
    "apart": lambda x: x[::4],
    "backwards": lambda x: x[::4][::-1],
    "column": lambda x: x.reshape(-1, 4)[:, 2],
    "columns": lambda x: x.reshape(-1, 4)[:, :1].T,
}


class Drawn(NamedTuple):
    """A message. All ranks know it."""

    number: int
    source: int
    dest: int
    tag: int
    elements: int
    sent_as: str
    taken_as: str

    @property
    def values(self) -> NDArray[np.float64]:
        return self.number + np.arange(self.elements) / 8

    def given(self) -> NDArray[np.float64]:
        x = self._array(self.sent_as)
        x[...] = self.values.reshape(x.shape)
        return x

    def room(self) -> NDArray[np.float64]:
        x = self._array(self.taken_as)
        x[...] = -1
        return x

    def _array(self, layout: str) -> NDArray[np.float64]:
        return LAYOUTS[layout](np.full(4 * self.elements, -2.0))

    def check(self, found: NDArray[np.float64]) -> None:
        np.testing.assert_array_equal(found.reshape(-1), self.values, str(self))
        base = found.base
        if base is not None and self.taken_as != "whole":  # nothing else was written to
            assert np.count_nonzero(np.asarray(base) == -2) >= 3 * self.elements


class Messages:
    """The messages of a communicator of so many ranks. A rank that is not in it draws them, too, and makes none."""

    def __init__(
        self, comm: mpicoll.Communicator, size: int, common: random.Random, seed: int, is_in: bool = True
    ) -> None:
        self.comm, self.rank, self.size = comm, comm.rank if is_in else -1, size
        self.common, self.own = common, random.Random(seed + 1 + self.rank)
        self.number = 0

    def draw(self) -> Drawn:
        self.number += 1
        common, ranks, layouts = self.common, range(self.size), [*LAYOUTS]
        source, dest, tag = common.choice(ranks), common.choice(ranks), common.choice((0, 0, 1, 7, 100_000))
        count = common.choice(COUNTS[: common.choice((6, 10, len(COUNTS)))])
        count = LONG if common.random() < 0.001 else count
        return Drawn(self.number, source, dest, tag, count, common.choice(layouts), common.choice(layouts))

    def pause(self) -> None:
        if self.own.random() < 0.02:
            time.sleep(self.own.choice((0.0, 0.0005, 0.003)))

    def round(self) -> None:
        drawn = [self.draw() for _ in range(self.common.randint(1, 15))]
        face = self.common.choice([
            self.under_way, self.one_by_one, self.shifted, self.objects, self.any_of, self.passed, self.given_up,
            self.repeated, self.among_neighbours,
        ])  # fmt: skip
        if self.rank >= 0:
            face(drawn)

    def under_way(self, drawn: list[Drawn]) -> None:
        """Receives and sends are begun in any order, as long as those of a pair keep theirs, and waited for in any."""
        comes, leaves = self._mine(drawn)
        begun: list[tuple[Any, Drawn | None, Any]] = []
        each: Drawn | None
        for each in self._shuffled(comes, leaves):
            self.pause()
            if each in comes:
                x = each.room()
                begun.append((self.comm.irecv(x, each.source, each.tag), each, x))
                comes.remove(each)
            else:
                begun.append((self.comm.isend(x := each.given(), each.dest, each.tag), None, x))
        self.own.shuffle(begun)
        for request, each, x in begun:
            while self.own.random() < 0.5 and not request.test():
                self.pause()
            request.wait()
            if each is not None:
                assert (request.source, request.tag) == (each.source, each.tag)
                each.check(x)

    def _mine(self, drawn: list[Drawn]) -> tuple[list[Drawn], list[Drawn]]:
        return [m for m in drawn if m.dest == self.rank], [m for m in drawn if m.source == self.rank]

    def _shuffled(self, comes: list[Drawn], leaves: list[Drawn]) -> list[Drawn]:
        queues, order = [[*comes], [*leaves]], []
        while any(queues):
            order.append(self.own.choice([queue for queue in queues if queue]).pop(0))
        return order

    def one_by_one(self, drawn: list[Drawn]) -> None:
        """Blocking calls, in the order of all messages."""
        for each in drawn:
            self.pause()
            if each.source == each.dest == self.rank:
                request = self.comm.isend(x := each.given(), self.rank, each.tag)
                each.check(self.comm.recv(each.room(), self.rank, each.tag))
                request.wait()
                assert x.size == each.elements
            elif each.source == self.rank:
                self.comm.send(each.given(), each.dest, each.tag)
            elif each.dest == self.rank:
                each.check(self.comm.recv(each.room(), each.source, each.tag))

    def shifted(self, drawn: list[Drawn]) -> None:
        """Each rank sends to one and receives from another at once; sometimes in place, and sometimes there is nobody
        beyond the first and the last rank."""
        for each in drawn:
            self.pause()
            by = 1 + each.tag % self.size
            mine, theirs = (
                each._replace(number=each.number + 1_000_000 * r, source=r)
                for r in (self.rank, (self.rank - by) % self.size)
            )
            dest, source = (self.rank + by) % self.size, theirs.source
            if each.sent_as == "whole":
                dest = dest if self.rank + by < self.size else MPI.PROC_NULL
                source = source if self.rank >= by else MPI.PROC_NULL
            in_place = each.elements % 2 == 1
            given = (each._replace(sent_as=each.taken_as)._replace(number=mine.number) if in_place else mine).given()
            room = given if in_place else theirs.room()
            found = self.comm.sendrecv(given, dest, room, source, each.tag, each.tag)
            if source != MPI.PROC_NULL:
                theirs.check(found)
            elif in_place:
                mine.check(found)
            else:
                assert np.all(found == -1)

    def given_up(self, drawn: list[Drawn]) -> None:
        """Receives are given up. What has come by then was received; all else is received after that."""
        comes, leaves = self._mine(drawn)
        nothing = self.comm.irecv(np.empty(3), None, UNUSED)
        sends = [(self.comm.isend(x := m.given(), m.dest, m.tag), x) for m in leaves]
        for each in comes:
            request = self.comm.irecv(x := each.room(), each.source, each.tag)
            self.pause()
            if request.cancel():
                assert np.all(x == -1)
                self.comm.recv(x, each.source, each.tag)
            each.check(x)
        for send, _ in sends:
            send.wait()
        assert nothing.cancel()

    def repeated(self, drawn: list[Drawn]) -> None:
        """Calls that are made three times on one memory, with other values each time."""
        for each in drawn:
            if self.rank == each.source != each.dest:
                x = each.given()
                send = self.own.choice((self.comm.send, self.comm.isend))
                for _ in range(3):
                    self.pause()
                    if (request := send(x, each.dest, each.tag)) is not None:
                        request.wait()
                    x += 1_000_000
            elif self.rank == each.dest != each.source:
                x = each.room()
                recv = self.own.choice((self.comm.recv, self.comm.irecv))
                for i in range(3):
                    self.pause()
                    found: Any = recv(x, each.source, each.tag)
                    if found is not x:
                        found.wait()
                    each._replace(number=each.number + 1_000_000 * i).check(x)

    def among_neighbours(self, drawn: list[Drawn]) -> None:
        """Where the communicator is a ring, blocks go to both sides, while a receive of any message waits."""
        if self.comm._engine.fabric.neighbours() is None:
            self.under_way(drawn)
            return
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        waiting = self.comm.irecv(got := np.zeros(1), None, None)
        for each in drawn:
            self.pause()
            from_before, from_after = each._replace(number=2 * before + 1), each._replace(number=2 * after)
            xs = np.stack([each._replace(number=2 * self.rank + side).values for side in range(2)])
            out = self.comm.neighbor_alltoall(xs, out=np.empty_like(xs) if each.tag else None)
            np.testing.assert_array_equal(out, [from_before.values, from_after.values])
            gathered = self.comm.neighbor_allgather(xs[0])
            np.testing.assert_array_equal(gathered, [from_before._replace(number=2 * before).values, from_after.values])
        assert self.comm.iprobe() is None
        assert not waiting.test()
        self.comm.barrier()
        self.comm.send(np.full(1, 5.0), after, 3)
        waiting.wait()
        assert (got[0], waiting.source) == (5, before)
        self.comm.barrier()  # what any rank has sent belongs to this round

    def objects(self, drawn: list[Drawn]) -> None:
        """Those of tag 0 come from any rank. They are short, so that no rank waits until one is taken."""
        drawn = [m if m.tag else m._replace(elements=min(m.elements, 100)) for m in drawn]
        comes = [m for m in drawn if m.dest == self.rank != m.source]
        for each in drawn:
            self.pause()
            if each.source == self.rank != each.dest:
                self.comm.send_object((each.number, each.values), each.dest, each.tag)
            elif each.dest == self.rank != each.source:
                number, values = self.comm.recv_object(each.source if each.tag else None, each.tag)
                came = next(m for m in comes if m.number == number)
                first = next(m for m in comes if (m.source, m.tag) == (came.source, came.tag))
                assert came is first
                assert came is each or not each.tag
                np.testing.assert_array_equal(values, came.values)
                comes.remove(came)
        self.comm.barrier()  # what any rank has sent belongs to this round

    def any_of(self, drawn: list[Drawn]) -> None:
        """Receives from any rank and of any tag: those of one sender come in their order."""
        drawn = [m._replace(elements=drawn[0].elements) for m in drawn]
        comes, leaves = self._mine(drawn)
        sends = [(self.comm.isend(x := m.given(), m.dest, m.tag), x) for m in leaves]
        while comes:
            self.pause()
            if self.own.random() < 0.3:
                found = self.comm.probe(None, None)
                assert found.nbytes == 8 * drawn[0].elements
            x = comes[0].room()
            request = self.comm.irecv(x, *self.own.choice([(None, None), (MPI.ANY_SOURCE, MPI.ANY_TAG)]))
            request.wait()
            each = next(m for m in comes if m.source == request.source)
            assert request.tag == each.tag
            each._replace(taken_as=comes[0].taken_as).check(x)
            comes.remove(each)
        for send, _ in sends:
            send.wait()
        self.comm.barrier()

    def passed(self, drawn: list[Drawn]) -> None:
        """All are sent before any receive asks for them, and are taken by their tags in another order."""
        comes, leaves = self._mine(drawn)
        sends = [(self.comm.isend(x := m.given(), m.dest, m.tag), x) for m in leaves]
        self.comm.barrier()
        while comes:
            any_one = self.own.choice(comes)
            each = next(m for m in comes if (m.source, m.tag) == (any_one.source, any_one.tag))
            if self.own.random() < 0.5:
                while (found := self.comm.iprobe(each.source, each.tag)) is None:
                    self.pause()
                assert found == self.comm.probe(each.source, each.tag) == (each.source, each.tag, 8 * each.elements)
                assert self.comm.iprobe(each.source, UNUSED) is None
            each.check(self.comm.recv(each.room(), each.source, each.tag))
            comes.remove(each)
        for send, _ in sends:
            send.wait()
        if self.comm._engine.tells_kinds:
            self.comm.barrier()  # a probe may find an object of the next round before an array


def in_threads(first: Messages, second: Messages) -> None:
    """The main thread and another one, each on a communicator of its own."""
    common = first.common
    drawn = [[each.draw() for _ in range(common.randint(1, 8))] for each in (first, second)]
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(second.under_way if common.random() < 0.5 else second.one_by_one, drawn[1])
        (first.under_way if common.random() < 0.5 else first.one_by_one)(drawn[0])
        beside.result()


@pytest.mark.parametrize("check", ["watch", "full"])
def test_random_messages(check: str) -> None:
    with mpicoll.Communicator(check=check) as comm:
        seed = comm.bcast_object(int(os.environ.get("MPICOLL_SEED", random.randrange(1 << 30))))
        print(f"{ROUNDS} rounds, MPICOLL_SEED = {seed}")
        common, inner = random.Random(seed), range(1, comm.size)
        turned = comm.subset(range(comm.size)[::-1])
        mpis = MPI.COMM_WORLD.Create_cart([comm.size], periods=[True])
        ring = mpicoll.Communicator(mpis, check=check)
        mpis.Free()
        every = [Messages(each, comm.size, common, seed) for each in (comm, turned, ring)]
        if len(inner) > 1:
            some = comm.subset(inner)
            every.append(Messages(some or comm, len(inner), common, seed, some is not None))
        for _ in range(ROUNDS):
            if common.random() < 0.05:
                in_threads(*every[:2])
            else:
                common.choice(every).round()
        for each in [each for each in every if each.rank >= 0]:
            each.comm.barrier()
            assert each.comm.iprobe(None, None) is None
            assert not each.comm._engine.fabric.messages.unreceived()
            if each.comm is not comm:
                each.comm.free()
        if comm.rank == 0:
            print(f"{sum(each.number for each in every)} messages")
