"""A program of three ranks that is right, whatever it looks like. Argument: its NAME."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

import mpicoll
from tests.jobs.programs.begun import another, begun, x

Program: TypeAlias = "Callable[[mpicoll.Communicator], object]"
RIGHT: dict[str, Program] = {}
"""What is right, by name. What such a function returns is there until the program ends."""


def right(name: str) -> Callable[[Program], Program]:
    """A decorator of what is right."""

    def declared(program: Program) -> Program:
        assert name not in RIGHT, name
        RIGHT[name] = program
        return program

    return declared


@right("a long computation")
def a_long_computation(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        time.sleep(15)
    comm.allreduce(x)


@right("ends apart")
def ends_apart(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        time.sleep(10)


@right("many calls")
def many_calls(comm: mpicoll.Communicator) -> None:
    for _ in range(10):  # so that watchers look at many rings of calls, however fast these are
        for _ in range(1000):
            comm.allreduce(x)
        time.sleep(0.2)


@right("exactly two rings")
def exactly_two_rings(comm: mpicoll.Communicator) -> None:
    for _ in range(512 - 3):
        comm.allreduce(x)


@right("groups")
def groups(comm: mpicoll.Communicator) -> None:
    for i in range(300):
        part = comm.split(comm.rank % 2) if i % 2 else comm.subset([2, 0]) if comm.rank != 1 else None
        if part is not None:
            part.allreduce(x)
            part.free()


@right("communicators that two threads make")
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


@right("ranks in another order")
def ranks_in_another_order(comm: mpicoll.Communicator) -> object:
    part = comm.subset([2, 1, 0])
    assert part is not None
    for i in range(9):
        part.bcast(x, root=i % 3)
    return part


@right("arguments that may differ")
def arguments_that_may_differ(comm: mpicoll.Communicator) -> None:
    rank = comm.rank
    comm.alltoallv(np.ones(sum(range(rank, rank + 3))), [*range(rank, rank + 3)], [*range(rank, rank + 3)])
    comm.allreduce(x, op=mpicoll.Op.premul_sum(0.5 + rank))
    comm.scatter(np.ones((3, 4)) if rank == 0 else None, out=np.ones(4))
    comm.allgather_object({"rank": rank} if rank else None)
    comm.gather(x, out=np.ones((3, 6)) if rank == 0 else None)


@right("messages one after another")
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


@right("one rank alone")
def one_rank_alone(comm: mpicoll.Communicator) -> object:
    from mpi4py import MPI

    alone = mpicoll.Communicator(MPI.COMM_SELF)
    alone.allreduce(x)
    return alone


@right("unfreed")
def unfreed(comm: mpicoll.Communicator) -> None:
    parts = [another(comm) for _ in range(5)]
    parts[0].allreduce(x)
    del parts


@right("MPI.Finalize by the program")
def finalize_by_the_program(comm: mpicoll.Communicator) -> None:
    from mpi4py import MPI

    MPI.Finalize()
    time.sleep(1 + 2 * comm.rank)


@right("a message that nobody waits for")
def a_message_that_nobody_waits_for(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.isend(np.ones(1 << 20), 1)
    elif comm.rank == 1:
        time.sleep(3)
        comm.recv(np.ones(1 << 20), 0)


@right("a root that comes late")
def a_root_that_comes_late(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        time.sleep(12)
    elif comm.rank == 2:
        comm.recv(x, 1)  # which rank 1 sends when it has got the root's
    comm.bcast(x, algorithm="native")  # in which no rank waits for others than the root
    if comm.rank == 1:
        comm.send(x, 2)


@right("a message that is waited for later")
def a_message_that_is_waited_for_later(comm: mpicoll.Communicator) -> object:
    given, taken = np.ones(1 << 20), np.ones(1 << 20)
    sent = comm.isend(given, (comm.rank + 1) % 3)
    if comm.rank == 0:
        time.sleep(8)
    comm.recv(taken, (comm.rank - 1) % 3)
    sent.wait()
    return sent


@right("a thread of a rank that has ended")
def a_thread_of_a_rank_that_has_ended(comm: mpicoll.Communicator) -> None:
    def late() -> None:
        time.sleep(6)
        comm.send(x, 0)

    if comm.rank == 1:
        threading.Thread(target=late, daemon=True).start()
    elif comm.rank == 0:
        comm.recv(x, 1)


@right("a caught mismatch")
def a_caught_mismatch(comm: mpicoll.Communicator) -> object:
    checked = mpicoll.Communicator(check="full", timeout=60)
    try:
        checked.bcast(x, root=comm.rank // 2)
    except mpicoll.errors.MismatchError:
        pass
    else:
        sys.exit("no MismatchError")
    comm.allreduce(x)
    return checked


@right("a forked child")
def a_forked_child(comm: mpicoll.Communicator) -> None:
    child = os.fork()
    if child == 0:
        try:
            comm.allreduce(x)
        except mpicoll.errors.StateError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    comm.allreduce(x)


if __name__ == "__main__":
    comm = begun()
    stays = RIGHT[sys.argv[1]](comm)
    print("went on")
