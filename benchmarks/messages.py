"""How fast are messages within a node? mpi4py and mpicoll, mpicoll.torch and gloo, in one job.

    mpicoll run -n 2 benchmarks/messages.py [--busy 2]

All ways take turns, on the same lengths. A figure is the median of some rounds in microseconds, of the slowest rank.
The machine changes between rounds, so that a ratio is the median of each round's.

- `ping-pong`: there and back again, between ranks 0 and 1, 2 and 3, ...
- `sendrecv`, `isend + irecv`: each rank sends to the next one, and receives from the one before. `copy` copies as much
  out of the other rank's memory, and does nothing else.
- `neighbours`: each rank sends a block to each neighbour on a ring, and receives theirs.
- `objects`: a ping-pong of bytes, pickled.
- `halo`: both borders of 512 elements of a matrix whose columns lie apart. mpi4py's are packed by hand.

`--busy N` starts N processes that compute all the time. Python's timeit times the calls, and turns garbage collection
off meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from timeit import Timer
from typing import Any

from node import calls_of, job  # type: ignore[import-not-found]  # beside this file

LENGTHS = 8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20
SHARED = 16 << 10
"""Bytes of the shortest array of which there is one in memory that ranks share, too."""
OBJECTS = 64 << 10
"""Bytes of the longest object."""
ROUNDS = 9
HALO = 512


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--busy", type=int, default=0, metavar="N")
    busy = p.parse_args().busy

    with job(busy) as (comm, about):
        for title, ways in cases(comm):
            found = timed(comm, ways)
            if comm.rank == 0:
                cells = (f"{name} {median(us):9.2f}" for name, us in found.items())
                base, own = ("mpi4py", "mpicoll") if "mpi4py" in found else ("gloo", "mpicoll.torch")
                ratio = median(a / b for a, b in zip(found[base], found[own], strict=True))
                print(f"{title:24s}", "   ".join(cells), f"  {ratio:5.2f} times its speed", flush=True)
    if comm.rank == 0:
        print(f"# {about}")


def cases(comm: Any) -> Iterator[tuple[str, dict[str, Timer]]]:
    """Each case's title, and its ways as a program writes them."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import mpicoll.torch

    world, rank, size = MPI.COMM_WORLD, comm.rank, comm.size
    mpis_ring = world.Create_cart([size], periods=[True])
    known = {
        "world": world, "comm": comm, "mpis_ring": mpis_ring, "ring": mpicoll.Communicator(mpis_ring),
        "torch": mpicoll.torch, "dist": dist,
        "other": rank ^ 1, "after": (rank + 1) % size, "before": (rank - 1) % size,
    }  # fmt: skip

    def ways(of: dict[str, Any], **calls: str) -> dict[str, Timer]:
        return {name.replace("_", "."): Timer(call, globals={**known, **of}) for name, call in calls.items()}

    def ping_pong(send: str, recv: str) -> str:
        return "pass" if rank ^ 1 >= size else f"{recv}; {send}" if rank % 2 else f"{send}; {recv}"

    def begun(recv: str, send: str, wait: str) -> str:
        return f"comes = {recv}; leaves = {send}; comes.{wait}(); leaves.{wait}()"

    window = MPI.Win.Allocate_shared(LENGTHS[-1], 8, comm=world)
    own, its = (np.frombuffer(window.Shared_query(r)[0], np.float64) for r in (rank, known["before"]))  # type: ignore[call-overload]
    own[:] = 1
    world.Barrier()
    known |= {"copyto": np.copyto}
    for nbytes in LENGTHS:
        of = {"x": np.ones(nbytes // 8), "y": np.empty(nbytes // 8)}
        long = {"x": comm.empty(nbytes // 8), "y": comm.empty(nbytes // 8)} if nbytes >= SHARED else {}
        each_way = "comm.sendrecv(x, after, y, before)"
        there_and_back = ping_pong("comm.send(x, other)", "comm.recv(y, other)")
        yield (
            f"ping-pong {nbytes}",
            ways(of, mpi4py=ping_pong("world.Send(x, other)", "world.Recv(y, other)"), mpicoll=there_and_back)
            | (ways(long, shared=there_and_back) if long else {}),
        )
        yield (
            f"sendrecv {nbytes}",
            ways(of, mpi4py="world.Sendrecv(x, after, 0, y, before, 0)", mpicoll=each_way)
            | (ways({**long, "its": its[: nbytes // 8]}, shared=each_way, copy="copyto(y, its)") if long else {}),
        )
        yield (
            f"isend + irecv {nbytes}",
            ways(
                of,
                mpi4py=begun("world.Irecv(y, before)", "world.Isend(x, after)", "Wait"),
                mpicoll=begun("comm.irecv(y, before)", "comm.isend(x, after)", "wait"),
            ),
        )
        yield (
            f"neighbours {nbytes}",
            ways(
                {"x": np.ones((2, nbytes // 8)), "y": np.empty((2, nbytes // 8))},
                mpi4py="mpis_ring.Neighbor_alltoall(x, y)",
                mpicoll="ring.neighbor_alltoall(x, y)",
            ),
        )
        yield (
            f"torch's {nbytes}",
            ways(
                {"x": torch.ones(nbytes // 4), "y": torch.empty(nbytes // 4)},
                mpicoll_torch=begun("torch.irecv(y, before)", "torch.isend(x, after)", "wait"),
                gloo=begun("dist.irecv(y, before)", "dist.isend(x, after)", "wait"),
            ),
        )
        if nbytes <= OBJECTS:
            yield (
                f"objects {nbytes}",
                ways(
                    {"x": b"x" * nbytes},
                    mpi4py=ping_pong("world.send(x, other)", "world.recv(source=other)"),
                    mpicoll=ping_pong("comm.send_object(x, other)", "comm.recv_object(other)"),
                ),
            )
    yield f"halo {HALO}", halo(comm, world)


def halo(comm: Any, world: Any) -> dict[str, Timer]:
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

    return {"mpi4py": Timer(packed), "mpicoll": Timer(strided)}


def timed(comm: Any, ways: dict[str, Timer]) -> dict[str, list[float]]:
    """The times of each way in each round, in microseconds, of the slowest rank."""
    often = {name: calls_of(comm, call) for name, call in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            comm.barrier()
            found[name].append(call.timeit(often[name]) / often[name] * 1e6)
    ranks = comm.allgather_object(found)
    return {name: [max(each) for each in zip(*(one[name] for one in ranks), strict=True)] for name in ways}


if __name__ == "__main__":
    main()
