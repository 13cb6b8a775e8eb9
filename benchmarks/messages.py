"""How fast are messages within a node? mpi4py and mpicoll, mpicoll.torch and gloo, in one job.

    mpicoll run -n 2 benchmarks/messages.py [--busy 2]

All ways take turns, on the same lengths. A figure is the median of some rounds in microseconds, of the slowest rank:

- `ping-pong`: there and back again, between ranks 0 and 1, 2 and 3, ...
- `sendrecv`, `isend + irecv`: each rank sends to the next one, and receives from the one before.
- `neighbours`: each rank sends a block to each neighbour on a ring, and receives theirs.
- `objects`: a ping-pong of bytes, pickled.
- `halo`: both borders of 512 elements of a matrix whose columns lie apart. mpi4py's are packed by hand.

`--busy N` starts N processes that compute all the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from node import job  # type: ignore[import-not-found]  # beside this file

LENGTHS = 8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20
OBJECTS = 64 << 10
"""Bytes of the longest object."""
ROUNDS = 9
SECONDS = 0.02
"""Of one way in one round."""
HALO = 512

Way = Callable[[], object]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--busy", type=int, default=0, metavar="N")
    busy = p.parse_args().busy

    with job(busy) as (comm, about):
        for title, ways in cases(comm):
            found = timed(comm, ways)
            if comm.rank == 0:
                cells = (f"{name} {us:9.2f}" for name, us in found.items())
                base, own = ("mpi4py", "mpicoll") if "mpi4py" in found else ("gloo", "mpicoll.torch")
                ratio = found[base] / found[own]
                print(f"{title:24s}", "   ".join(cells), f"  {ratio:5.2f} times its speed", flush=True)
    if comm.rank == 0:
        print(f"# {about}")


def cases(comm: Any) -> Iterator[tuple[str, dict[str, Way]]]:
    """Each case's title, and its ways."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import mpicoll.torch

    world, rank, size = MPI.COMM_WORLD, comm.rank, comm.size
    after, before = (rank + 1) % size, (rank - 1) % size
    mpis_ring = world.Create_cart([size], periods=[True])
    ring = mpicoll.Communicator(mpis_ring)

    def ping_pong(send: Callable[[Any, int], object], recv: Callable[[Any, int], object], x: Any, y: Any) -> Way:
        first, other = rank % 2 == 0, rank ^ 1

        def there_and_back() -> None:
            if other < size and first:
                send(x, other)
                recv(y, other)
            elif other < size:
                recv(y, other)
                send(x, other)

        return there_and_back

    def begun(irecv: Callable[[Any, int], Any], isend: Callable[[Any, int], Any], x: Any, y: Any, wait: str) -> Way:
        def both() -> None:
            comes, leaves = irecv(y, before), isend(x, after)
            getattr(comes, wait)()
            getattr(leaves, wait)()

        return both

    for nbytes in LENGTHS:
        x, y = np.ones(nbytes // 8), np.empty(nbytes // 8)
        t, u = torch.ones(nbytes // 4), torch.empty(nbytes // 4)
        xs, ys = np.ones((2, nbytes // 8)), np.empty((2, nbytes // 8))
        yield (
            f"ping-pong {nbytes}",
            {"mpi4py": ping_pong(world.Send, world.Recv, x, y), "mpicoll": ping_pong(comm.send, comm.recv, x, y)},
        )
        yield (
            f"sendrecv {nbytes}",
            {
                "mpi4py": partial(world.Sendrecv, x, after, 0, y, before, 0),
                "mpicoll": partial(comm.sendrecv, x, after, y, before),
            },
        )
        yield (
            f"isend + irecv {nbytes}",
            {
                "mpi4py": begun(world.Irecv, world.Isend, x, y, "Wait"),
                "mpicoll": begun(comm.irecv, comm.isend, x, y, "wait"),
            },
        )
        yield (
            f"neighbours {nbytes}",
            {
                "mpi4py": partial(mpis_ring.Neighbor_alltoall, xs, ys),
                "mpicoll": partial(ring.neighbor_alltoall, xs, ys),
            },
        )
        yield (
            f"torch's {nbytes}",
            {
                "mpicoll.torch": begun(mpicoll.torch.irecv, mpicoll.torch.isend, t, u, "wait"),
                "gloo": begun(dist.irecv, dist.isend, t, u, "wait"),
            },
        )
        if nbytes <= OBJECTS:
            given = b"x" * nbytes
            yield (
                f"objects {nbytes}",
                {
                    "mpi4py": ping_pong(world.send, lambda _, source: world.recv(source=source), given, None),
                    "mpicoll": ping_pong(comm.send_object, lambda _, source: comm.recv_object(source), given, None),
                },
            )
    yield f"halo {HALO}", halo(comm, world)


def halo(comm: Any, world: Any) -> dict[str, Way]:
    import numpy as np
    from mpi4py import MPI

    a = np.random.rand(HALO, HALO + 2)
    s1, s2, t1, t2 = (np.empty(HALO) for _ in range(4))
    nobody = MPI.PROC_NULL
    left = comm.rank - 1 if comm.rank else nobody
    right = comm.rank + 1 if comm.rank < comm.size - 1 else nobody

    def packed() -> None:
        s1[:], s2[:] = a[:, 1], a[:, -2]
        world.Sendrecv(s1, left, 0, t2, right, 0)
        world.Sendrecv(s2, right, 1, t1, left, 1)
        if right != nobody:
            a[:, -1] = t2
        if left != nobody:
            a[:, 0] = t1

    def strided() -> None:
        comm.sendrecv(a[:, 1], left, a[:, -1], right)
        comm.sendrecv(a[:, -2], right, a[:, 0], left)

    return {"mpi4py": packed, "mpicoll": strided}


def timed(comm: Any, ways: dict[str, Way]) -> dict[str, float]:
    """The median of each way, in microseconds."""
    often = {}
    for name, call in ways.items():
        comm.barrier()
        start = perf_counter()
        for _ in range(3):
            call()
        seconds = comm.allreduce_object((perf_counter() - start) / 3, "max")
        often[name] = max(3, min(3000, int(SECONDS / max(seconds, 1e-7))))
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            comm.barrier()
            start = perf_counter()
            for _ in range(often[name]):
                call()
            found[name].append((perf_counter() - start) / often[name] * 1e6)
    return {name: comm.allreduce_object(median(each), "max") for name, each in found.items()}


if __name__ == "__main__":
    main()
