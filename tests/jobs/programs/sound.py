"""A program of three ranks that is right, whatever it looks like. Argument: its NAME, which is that of a function."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import mpicoll
from tests.jobs.programs.faults import another, begun, x


def exactly_two_rings(comm: mpicoll.Communicator) -> None:
    for _ in range(512 - 3):
        comm.allreduce(x)


def many_calls(comm: mpicoll.Communicator) -> object:
    """Of communicators that are made and freed, or forgotten, and with arguments that may differ between ranks."""
    for _ in range(10):  # so that watchers look at many rings of calls, however fast these are
        for _ in range(1000):
            comm.allreduce(x)
        time.sleep(0.2)
    for i in range(300):
        part = comm.split(comm.rank % 2) if i % 2 else comm.subset([2, 0]) if comm.rank != 1 else None
        if part is not None:
            part.allreduce(x)
            part.free()
    unfreed = [another(comm) for _ in range(5)]
    unfreed[0].allreduce(x)
    del unfreed
    backwards, alone, rank = comm.subset([2, 1, 0]), mpicoll.Communicator(MPI.COMM_SELF), comm.rank
    assert backwards is not None
    for i in range(9):
        backwards.bcast(x, root=i % 3)
    alone.allreduce(x)
    comm.alltoallv(np.ones(sum(range(rank, rank + 3))), [*range(rank, rank + 3)], [*range(rank, rank + 3)])
    comm.allreduce(x, op=mpicoll.Op.premul_sum(0.5 + rank))
    comm.scatter(np.ones((3, 4)) if rank == 0 else None, out=np.ones(4))
    comm.allgather_object({"rank": rank} if rank else None)
    comm.gather(x, out=np.ones((3, 6)) if rank == 0 else None)
    return backwards, alone


def communicators_that_two_threads_make(comm: mpicoll.Communicator) -> object:
    parents = [another(comm), another(comm)]

    def work(parent: mpicoll.Communicator, mine: int) -> None:
        for _ in range(100):  # sooner or later another thread is the first one on some rank
            part = another(parent)
            for _ in range(2 + mine):
                if mine:
                    part.allreduce(np.ones(3 + mine))
                else:
                    part.barrier()
            part.free()

    works = [threading.Thread(target=work, args=[parent, mine]) for mine, parent in enumerate(parents)]
    for each in works:
        each.start()
    for each in works:
        each.join()
    request = comm.iallreduce(np.ones(9), algorithm="ring")  # by a thread, with a communicator of its own
    another(comm).barrier()
    request.wait()
    return parents, request


def messages_one_after_another(comm: mpicoll.Communicator) -> object:
    comm.timeout = 10
    end = time.monotonic() + 12
    while comm.rank < 2 and x[0]:
        if comm.rank == 0:
            time.sleep(0.001)
            x[0] = time.monotonic() < end
            comm.send(x, 1)
        else:
            comm.recv(x, 0)  # rank 0 says which is the last one
    if comm.rank != 1:
        return None
    request = comm.irecv(x, 0)
    time.sleep(1.5)
    request.cancel()
    return request


def finalize_by_the_program(comm: mpicoll.Communicator) -> None:
    MPI.Finalize()
    time.sleep(1 + 2 * comm.rank)


def a_message_that_nobody_waits_for(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.isend(np.ones(1 << 20), 1)
    elif comm.rank == 1:
        time.sleep(3)
        comm.recv(np.ones(1 << 20), 0)


def a_root_that_computes_for_long(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        time.sleep(12)
    elif comm.rank == 2:
        comm.recv(x, 1)  # which rank 1 sends when it has got the root's
    comm.bcast(x, algorithm="native")  # in which no rank waits for others than the root
    if comm.rank == 1:
        comm.send(x, 2)


def a_message_that_is_waited_for_later(comm: mpicoll.Communicator) -> object:
    given, taken = np.ones(1 << 20), np.ones(1 << 20)
    sent = comm.isend(given, (comm.rank + 1) % 3)
    if comm.rank == 0:
        time.sleep(8)
    comm.recv(taken, (comm.rank - 1) % 3)
    sent.wait()
    return sent


def a_thread_of_a_rank_that_has_ended(comm: mpicoll.Communicator) -> None:
    """Another rank ends later than both."""

    def late() -> None:
        time.sleep(6)
        comm.send(x, 0)

    if comm.rank == 1:
        threading.Thread(target=late, daemon=True).start()
    elif comm.rank == 0:
        comm.recv(x, 1)
    else:
        time.sleep(10)


def a_caught_mismatch(comm: mpicoll.Communicator) -> object:
    checked = mpicoll.Communicator(check="full", timeout=60)
    try:
        checked.bcast(x, root=comm.rank // 2)
    except mpicoll.errors.MismatchError:
        comm.allreduce(x)
        return checked
    sys.exit("no MismatchError")


def groups_of_torch_made_again(comm: mpicoll.Communicator) -> None:
    import torch
    import torch.distributed as dist

    ones = torch.ones(6)
    for _ in range(3):
        dist.init_process_group("mpicoll")
        dist.all_reduce(ones, async_op=True)
        dist.broadcast(ones, 1)
        dist.destroy_process_group()


ON_BOTH = exactly_two_rings, communicators_that_two_threads_make, finalize_by_the_program
RIGHT = [
    *ON_BOTH, many_calls, messages_one_after_another, a_message_that_nobody_waits_for, a_root_that_computes_for_long,
    a_message_that_is_waited_for_later, a_caught_mismatch, a_thread_of_a_rank_that_has_ended,
    groups_of_torch_made_again,
]  # fmt: skip
"""Those that run on both MPIs, and all. What such a function returns is there until the program ends."""


if __name__ == "__main__":
    comm = begun()
    stays = globals()[sys.argv[1]](comm)
    print("went on")
