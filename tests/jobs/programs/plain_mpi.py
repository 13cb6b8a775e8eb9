"""Random legal calls of mpi4py's, the same ones on all ranks: ``plain_mpi.py SEED CALLS``. Nothing may be said."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from mpi4py import MPI

Call = Callable[[Any, Random, Random], None]
"""Makes calls on a communicator. What the first generator gives is the same on all ranks, and the second one's not."""
OPS = MPI.SUM, MPI.MAX, MPI.MIN
DTYPES = "float64", "int32", "complex64", "uint8"


def collective(comm: Any, same: Random, own: Random) -> None:
    """A collective of arrays that blocks, does not, or is persistent."""
    kind = same.choice(["", "", "I"] if MPI.Get_version() < (4, 0) else ["", "", "I", "init"])
    count, root, op = same.choice([0, 1, 3, 200, 5000]), same.randrange(comm.size), same.choice(OPS)
    dtype = same.choice(DTYPES)
    if dtype == "complex64":
        op = MPI.SUM
    small, large = np.ones(count, dtype), np.ones(count * comm.size, dtype)
    at_root = comm.rank == root
    if own.random() < 0.3 and count:  # the same memory in other words
        kind_of = MPI._typedict[small.dtype.char]
        given: Any = own.choice([[small, kind_of], [small, count, kind_of], [small, (count, 0), kind_of]])
    else:
        given = small
    in_place = own.choice([MPI.IN_PLACE, None])
    root_in_place = at_root and own.random() < 0.3
    arguments: dict[str, tuple[Any, ...]] = {
        "Barrier": (),
        "Bcast": (given, root),
        "Gather": (in_place if root_in_place else given, large if at_root else None, root),
        "Gatherv": (given, large if at_root else None, root),
        "Scatter": (large if at_root else None, in_place if root_in_place else given, root),
        "Allgather": (in_place if same.random() < 0.3 else given, large),
        "Allgatherv": (given, large),
        "Alltoall": (large.copy(), large),
        "Reduce": (in_place if root_in_place else given, small.copy() if at_root else None, op, root),
        "Allreduce": (in_place if same.random() < 0.3 else given, small.copy(), op),
        "Reduce_scatter_block": (large, small, op),
        "Reduce_scatter": (large, small, [count] * comm.size, op),
        "Scan": (given, small.copy(), op),
        "Exscan": (given, small.copy(), op),
    }
    name = same.choice([*arguments])
    full = {"": name, "I": f"I{name[0].lower()}{name[1:]}", "init": f"{name}_init"}[kind]
    result = getattr(comm, full)(*arguments[name])
    if kind == "init":
        for _ in range(2):
            result.Start()
            result.Wait()
        result.Free()
    elif kind:
        finish([result], own)


def objects(comm: Any, same: Random, own: Random) -> None:
    """A collective of objects. Ranks may give objects of different lengths."""
    given, root, op = "x" * own.randrange(2000), same.randrange(comm.size), same.choice(OPS)
    several = [given] * comm.size
    arguments: dict[str, tuple[Any, ...]] = {
        "barrier": (),
        "bcast": (given, root),
        "gather": (given, root),
        "scatter": (several if comm.rank == root else None, root),
        "allgather": (given,),
        "alltoall": (several,),
        "reduce": (own.random(), op, root),
        "allreduce": (own.random(), op),
        "scan": (own.random(), op),
    }
    name = same.choice([*arguments])
    getattr(comm, name)(*arguments[name])


def finish(requests: list[Any], own: Random) -> None:
    """Wait for requests in one of mpi4py's ways."""
    match own.choice(["Wait", "Waitall", "Waitany", "Waitsome", "Test", "Testall"]):
        case "Wait":
            for each in requests:
                each.Wait()
        case "Waitall":
            MPI.Request.Waitall(requests, [MPI.Status() for _ in requests])
        case "Waitany":
            for _ in requests:
                MPI.Request.Waitany(requests)
        case "Waitsome":
            while MPI.Request.Waitsome(requests) is not None:
                pass
        case "Test":
            while not all(each.Test() for each in requests):
                pass
        case _:
            while not MPI.Request.Testall(requests):
                pass


def messages(comm: Any, same: Random, own: Random) -> None:
    """A ring of messages, of arrays or objects."""
    right, left, tag = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, same.randrange(5)
    source = left if comm.size > 2 or same.random() < 0.5 else MPI.ANY_SOURCE
    count, which = same.choice([0, 1, 100, 20_000]), same.choice([tag, MPI.ANY_TAG])
    x, y = np.ones(count), np.empty(count)
    how = same.randrange(7 if MPI.Get_version() < (4, 0) else 8)
    if how == 0:
        comm.Sendrecv(x, right, tag, y, source, which)
    elif how == 1:
        finish([comm.Irecv(y, source, which), comm.Isend(x, right, tag)], own)
    elif how == 2:
        request = comm.isend(x, right, tag)
        comm.recv(source=source, tag=which)
        request.wait()
    elif how == 3:
        request = comm.Isend(x, right, tag)
        comm.Probe(source, which)
        comm.Recv(y, source, which)
        request.Wait()
    elif how == 4:
        comm.sendrecv(x, right, tag, source=source, recvtag=which)
    elif how == 5:
        request = comm.Issend(x, right, tag)
        while not comm.Iprobe(source, which):
            pass
        comm.Recv(y, source, which)
        request.Wait()
    elif how == 6:
        requests = [comm.Send_init(x, right, tag), comm.Recv_init(y, left, tag)]
        for _ in range(2):
            MPI.Prequest.Startall(requests)
            finish(requests, own)
        for each in requests:
            each.Free()
    else:  # in Open MPI, all ranks must make partitioned messages, or none goes on
        sent, came = np.ones((4, count + 1)), np.empty((2, 2 * count + 2))
        parts = comm.Psend_init(sent, 4, right, tag), comm.Precv_init(came, 2, left, tag)
        for _ in range(2):
            MPI.Prequest.Startall([*parts])
            parts[0].Pready_range(1, 2)
            parts[0].Pready_list([3])
            parts[0].Pready(0)
            while own.random() < 0.5 and not parts[1].Parrived(1):
                pass
            for each in parts:  # MPICH cannot test all of them at once
                each.Wait()
        for each in parts:
            each.Free()
    comm.Barrier()  # a receive from anybody must not take a message of the next call


def parts(comm: Any, same: Random, own: Random) -> None:
    """A communicator that is used once."""
    how = same.randrange(6 if MPI.Get_version() < (4, 0) else 7)
    if how == 0:
        part = comm.Split(comm.rank % 2, comm.rank)
    elif how == 1:
        part = comm.Dup()
    elif how == 2:
        part = comm.Create_cart([comm.size], [True])
        part.neighbor_allgather(own.random())
    elif how == 3:
        part = comm.Split_type(MPI.COMM_TYPE_SHARED)
    elif how == 4:
        part, request = comm.Idup()
        finish([request], own)
    else:
        group = comm.Get_group()
        part = comm.Create(group) if how == 5 else MPI.Intracomm.Create_from_group(group, "part")
        group.Free()
    same.choice([collective, objects, messages])(part, same, own)
    part.Free()


def groups(comm: Any, same: Random, own: Random) -> None:
    """A communicator between two groups, and what is made of it."""
    which = comm.rank % 2
    half = comm.Split(which)
    between = half.Create_intercomm(0, comm, 1 - which, tag=3)
    root = 0 if which else MPI.PROC_NULL if half.rank else MPI.ROOT
    for _ in range(3):
        between.bcast("x" * own.randrange(9), root)
        between.Barrier()
        between.allgather(own.random())
        if half.rank < between.remote_size:
            requests = [between.Irecv(np.empty(9), half.rank, 1), between.Isend(np.ones(9), half.rank, 1)]
            finish(requests, own)
    for each in (between.Merge(bool(which)), between.Dup(), between, half):
        each.Barrier()
        each.Free()


def memory(comm: Any, same: Random, own: Random) -> None:
    """A window, and a file."""
    x, y = np.full(4, comm.rank), np.empty(4, int)
    window = MPI.Win.Create(x, comm=comm)
    window.Fence()
    window.Get(y, (comm.rank + 1) % comm.size)
    window.Fence()
    if own.random() < 0.5:
        window.Lock(0)
        window.Get(y, 0)
        window.Unlock(0)
    for _ in range(2):
        window.Lock_all()
        window.Get(y, 0)
        window.Unlock_all()
        window.Lock(0, own.choice([MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE]))
        window.Unlock(0)
    everyone = comm.Get_group()
    others = everyone.Excl([comm.rank])
    window.Post(others)
    window.Start(others)
    window.Get(y, (comm.rank + 1) % comm.size)
    window.Complete()
    if own.random() < 0.5:
        window.Wait()
    else:
        while not window.Test():
            pass
    for each in (window, others, everyone):
        each.Free()
    name = comm.bcast(tempfile.mktemp())
    file = MPI.File.Open(comm, name, MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE)
    file.Write_at_all(comm.rank * x.nbytes, x)
    file.Sync()
    file.Read_at(comm.rank * x.nbytes, y)
    file.Close()
    assert (x == y).all()


def main(seed: int, calls: int) -> None:
    comm = MPI.COMM_WORLD
    same, own = Random(seed), Random(seed * 1000 + comm.rank)
    for _ in range(calls):
        call: Call = same.choices([collective, objects, messages, parts, groups, memory], [5, 3, 4, 0.3, 0.05, 0.05])[0]
        # A part has other ranks than its sister: what they choose must be the same within each.
        call(comm, Random(same.random()), own)
    print(f"rank {comm.rank} has made {calls} calls")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
