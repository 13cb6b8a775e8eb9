"""What does a call cost above mpi4py's? Messages, collectives and objects, each beside the same call of mpi4py's.

    mpicoll run -n 2 benchmarks/beside_mpi4py.py

All calls of a turn follow each other, and the turns are repeated, so that both libraries see the same machine. The
figures are microseconds a call: the least and the median of the turns. Caches stay warm: between other work, Python's
part takes two to three times as long.

The last lines say where the time of the commonest call goes: each of its parts alone, without MPI.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from timeit import Timer

import numpy as np
import torch
from mpi4py import MPI

import mpicoll
import mpicoll.torch as dist
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library

TURNS, CALLS = 15, 300

Call = Callable[[], object]


def calls() -> dict[str, tuple[Call, Call]]:
    """By name, a call of mpi4py's and the same one of mpicoll's."""
    world = MPI.COMM_WORLD.Dup()
    comm = mpicoll.Communicator(world)
    size, rank = world.size, world.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    x, y, big = np.ones(16), np.ones(16), np.ones((size, 16))
    other = big.copy()
    t, u = torch.ones(16), torch.ones(16)
    kind, sums = MPI.DOUBLE, MPI.SUM
    spec, room = [MPI.buffer(x), 16, kind], [MPI.buffer(y), 16, kind]
    persistent = [world.Recv_init(room, before, 5), world.Send_init(spec, after, 5)]
    dist.init_process_group()

    def both_of_mpi4py() -> None:
        requests = [world.Irecv(y, before), world.Isend(x, after)]
        requests[0].Wait()
        requests[1].Wait()

    def both() -> None:
        coming, going = comm.irecv(y, before), comm.isend(x, after)
        coming.wait()
        going.wait()

    def both_of_torch() -> None:
        ops = [dist.P2POp(dist.irecv, u, before), dist.P2POp(dist.isend, t, after)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def both_persistent() -> None:
        MPI.Prequest.Startall(persistent)
        MPI.Request.Waitall(persistent)

    def there_and_back(send: Callable[[], object], receive: Callable[[], object]) -> Call:
        first, second = (send, receive) if rank % 2 == 0 else (receive, send)

        def exchange() -> None:
            first()
            second()

        return exchange

    peer = rank ^ 1
    found: dict[str, tuple[Call, Call]] = {
        "sendrecv": (lambda: world.Sendrecv(x, after, 0, y, before, 0), lambda: comm.sendrecv(x, after, y, before)),
        "sendrecv, persistent requests": (both_persistent, lambda: comm.sendrecv(x, after, y, before)),
        "isend + irecv + waits": (both_of_mpi4py, both),
        "isend + irecv + waits, tensors of torch": (both_of_mpi4py, both_of_torch),
        "allreduce, in place": (lambda: world.Allreduce(MPI.IN_PLACE, x, sums), lambda: comm.allreduce(x, out=x)),
        "bcast": (lambda: world.Bcast(x), lambda: comm.bcast(x)),
        "reduce, in place at the root": (
            lambda: world.Reduce(x if rank else MPI.IN_PLACE, None if rank else x, sums),
            lambda: comm.reduce(x, out=x),
        ),
        "allgather": (lambda: world.Allgather(x, big), lambda: comm.allgather(x, out=big)),
        "gather": (lambda: world.Gather(x, big), lambda: comm.gather(x, out=big)),
        "scatter": (lambda: world.Scatter(big, y), lambda: comm.scatter(big, out=y)),
        "reduce_scatter": (lambda: world.Reduce_scatter_block(big, y), lambda: comm.reduce_scatter(big, out=y)),
        "alltoall": (lambda: world.Alltoall(big, other), lambda: comm.alltoall(big, out=other)),
        "barrier": (world.Barrier, comm.barrier),
        "bcast of an object": (lambda: world.bcast(1), lambda: comm.bcast_object(1)),
        "allgather of an object": (lambda: world.allgather(1), lambda: comm.allgather_object(1)),
        "allreduce of an object": (lambda: world.allreduce(1), lambda: comm.allreduce_object(1)),
    }  # fmt: skip
    if size % 2 == 0:
        found["send, there and back"] = (
            there_and_back(lambda: world.Send(x, peer), lambda: world.Recv(y, peer)),
            there_and_back(lambda: comm.send(x, peer), lambda: comm.recv(y, peer)),
        )
        found["send of an object, there and back"] = (
            there_and_back(lambda: world.send(1, peer), lambda: world.recv(source=peer)),
            there_and_back(lambda: comm.send_object(1, peer), lambda: comm.recv_object(peer)),
        )
    return found


class _Empty:
    def allreduce(self, x: object, op: str = "sum", out: object = None, algorithm: str | None = None) -> object:
        return x


def parts() -> dict[str, Call]:
    """By name, what mpicoll does in ``comm.allreduce(x, out=x)``, except for MPI's call."""
    comm, x, empty = mpicoll.Communicator(MPI.COMM_SELF), np.ones(16), _Empty()
    comm.allreduce(x, out=x)
    engine = comm._engine
    [plan] = engine.plans.values()

    def recorded() -> None:
        engine.recorder.begin(plan.record)
        engine.recorder.under_way = False

    def key() -> object:
        return engine.address(x), x.size, x.dtype, x.flags.num

    def found() -> object:
        return engine.plans.get(("allreduce", here, None, "sum", 0, None))

    here = key()
    return {
        "a method of these arguments": lambda: empty.allreduce(x, out=x),
        "where the array's memory is, and what it holds": key,
        "the search for the plan": found,
        "the record": recorded,
    }


def least(call: Call) -> float:
    """Microseconds a call."""
    return min(Timer(call).repeat(TURNS, 100 * CALLS)) / (100 * CALLS) * 1e6


def main() -> None:
    """Measure. Rank 0 prints."""
    timers = {name: [Timer(call) for call in pair] for name, pair in calls().items()}
    times: dict[str, list[list[float]]] = {name: [[], []] for name in timers}
    for _ in range(TURNS):
        for name, pair in timers.items():
            for which, timer in enumerate(pair):
                MPI.COMM_WORLD.Barrier()
                times[name][which].append(timer.timeit(CALLS) / CALLS * 1e6)
    if MPI.COMM_WORLD.rank:
        return
    print(f"{cpu_name()}, {MPI.COMM_WORLD.size} ranks, {library()}, mpicoll {mpicoll.__version__}")
    print(f"{'128 bytes; us: least (median)':42}{'mpi4py':>16}{'mpicoll':>16}{'more':>8}")
    for name, both in times.items():
        shown = [f"{min(each):.2f} ({statistics.median(each):.2f})" for each in both]
        print(f"{name:42}{shown[0]:>16}{shown[1]:>16}{min(both[1]) - min(both[0]):>8.2f}")
    for name, call in parts().items():
        print(f"{name:50}{least(call) - least(lambda: None):>8.2f}")


if __name__ == "__main__":
    main()
