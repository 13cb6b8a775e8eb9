"""Legal programs of mpi4py's in which more goes on than calls, one after the other: ``plain_others.py NAME ...``."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def threads() -> None:
    """Threads with communicators of their own, and one that uses the world's for messages."""
    sums: list[int] = []

    def use(own: MPI.Intracomm, number: int) -> None:
        for _ in range(50):
            total = own.allreduce(number)
            own.Sendrecv(np.ones(9), right, number, np.empty(9), left, number)
        sums.append(total)

    communicators = [comm.Dup() for _ in range(3)]
    each = [threading.Thread(target=use, args=(own, i)) for i, own in enumerate(communicators)]
    for one in each:
        one.start()
    for step in range(25):
        comm.isend(step, right, 5).wait() if comm.rank % 2 else comm.send(step, right, 5)
        assert comm.recv(source=left, tag=5) == step
    for one in each:
        one.join()
    assert sorted(sums) == [0, comm.size, 2 * comm.size]
    for own in communicators:
        own.Free()


def with_asyncio() -> None:
    async def exchange(tag: int) -> int:
        y = np.empty(3)
        requests = [comm.Irecv(y, left, tag), comm.Isend(np.full(3, float(tag)), right, tag)]
        while not MPI.Request.Testall(requests):
            await asyncio.sleep(0)
        return int(y[0])

    async def main() -> list[int]:
        return await asyncio.gather(*map(exchange, range(50)))

    assert asyncio.run(main()) == [*range(50)]


def signals() -> None:
    """A handler that itself makes calls of another communicator, of one rank."""
    alone, came = MPI.COMM_SELF.Dup(), [0]

    def handler(*_: Any) -> None:
        came[0] += alone.allreduce(1)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    for _ in range(2000):
        assert comm.allreduce(1) == comm.size
        comm.Barrier()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert came[0] > 0


def duplicated() -> None:
    """A communicator that the ranks complete one after the other: nobody may wait in it for the others meanwhile."""
    made, request = comm.Idup()
    if comm.rank:
        comm.recv(source=comm.rank - 1)
    request.Wait()
    if right:
        comm.send(None, right)
    assert made.allreduce(1) == comm.size
    made.Free()


def square(x: int) -> int:
    return x * x


def pool() -> None:
    """Workers that the first rank has started, and workers among the ranks."""
    if comm.rank == 0:
        with MPIPoolExecutor(max_workers=2) as executor:
            assert sum(executor.map(square, range(20))) == 2470
    comm.Barrier()
    with MPICommExecutor(comm, root=0) as among:
        if among is not None:
            assert sum(among.map(square, range(20))) == 2470  # type: ignore[attr-defined]  # mpi4py does not say what it is


def child() -> None:
    """What a process does that the ranks have started."""
    parent = MPI.Comm.Get_parent()
    whole = parent.Merge(True)
    assert whole.allreduce(1) == parent.bcast(None, 0) == whole.size
    parent.send(("of", parent.rank), 0, 7)
    whole.Free()
    parent.Disconnect()


def spawned() -> None:
    """Processes that the ranks have started, and a communicator with them."""
    for several in (False, True):
        if several:
            made = comm.Spawn_multiple([sys.executable] * 2, [[__file__, "child"]] * 2, [1, 1])
        else:
            made = comm.Spawn(sys.executable, [__file__, "child"], 2)
        whole = made.Merge(False)
        assert whole.allreduce(1) == whole.size == comm.size + 2
        made.bcast(whole.size, MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL)
        if comm.rank == 0:
            assert sorted(made.recv(source=MPI.ANY_SOURCE, tag=7) for _ in range(2)) == [("of", 0), ("of", 1)]
        whole.Free()
        made.Disconnect()


def connected() -> None:
    """A communicator between ranks that have found each other by a port."""
    first = comm.rank == 0
    half: Any = comm.Split(int(first))
    port = comm.bcast(MPI.Open_port() if first else None)
    made = half.Accept(port) if first else half.Connect(port)
    assert made.allgather(comm.rank) == ([*range(1, comm.size)] if first else [0])
    made.Barrier()
    made.Disconnect()
    if first:
        MPI.Close_port(port)
    half.Free()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        comm.Barrier()
        if comm.rank == 0 and name != "child":
            print(name, flush=True)
