"""Faults: ranks wait for each other in two places, or for a message that never comes."""

from __future__ import annotations

import gc
import sys

import numpy as np

import mpicoll
from tests.jobs.programs.begun import another, long, x
from tests.jobs.programs.declared import HERE, Faults
from tests.jobs.titles import HAS_LEFT, STUCK, TIME_IS_UP

FAULTS = Faults()
fault = FAULTS.declare


def by_a_thread(comm: mpicoll.Communicator) -> None:
    """A call of which nothing is left but the thread that has carried it out."""
    comm.iallreduce(np.ones(4, np.float16)).wait()


@fault(
    "two groups in different order",
    STUCK,
    "ranks wait in another communicator, too",
    "allreduce sum of 131072 float64",
    seconds=600,
)
def two_groups_in_different_order(comm: mpicoll.Communicator) -> None:
    one, other = another(comm), another(comm)
    for group in (one, other) if comm.rank == 1 else (other, one):
        group.allreduce(long)


@fault(
    "two groups, of which a rank has only one",
    STUCK.partition(" (")[0],
    "ranks wait in another communicator, too",
    "allreduce sum of 131072 float64",
    seconds=600,
)
def two_groups_of_which_a_rank_has_only_one(comm: mpicoll.Communicator) -> None:
    one, other = comm.split(0 if comm.rank < 2 else None), comm.split(0 if comm.rank else None)
    for group in {0: (one, comm), 1: (other, one, comm), 2: (comm, other)}[comm.rank]:
        assert group is not None
        group.allreduce(long)


@fault("nobody sends", TIME_IS_UP, "rank 1", "recv: no message came from rank 2 (tag 0)", HERE)
def nobody_sends(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        comm.recv(x, 2)  # here


@fault("nobody sends an object", TIME_IS_UP, "recv_object: no message came from any rank (tag 0)")
def nobody_sends_an_object(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        comm.recv_object()


@fault(
    "each receives first",
    STUCK,
    "rank 0  recv: no message came from rank 1 (tag 0)",
    "rank 2  recv: no message came from rank 0",
    seconds=600,
)
def each_receives_first(comm: mpicoll.Communicator) -> None:
    by_a_thread(comm)
    comm.recv(x, (comm.rank + 1) % 3)


@fault("each waits for its request first", STUCK, "rank 0  irecv: no message came from rank 1 (tag 0)", seconds=600)
def each_waits_for_its_request_first(comm: mpicoll.Communicator) -> None:
    comm.isend(x, (comm.rank + 1) % 3)
    comm.recv(np.empty(6), (comm.rank + 2) % 3)
    comm.barrier()
    request = comm.irecv(x, (comm.rank + 1) % 3)
    gc.freeze()
    request.wait()


@fault("a root runs ahead", STUCK, "recv: no message came from rank 0 (tag 0)", seconds=600)
def a_root_runs_ahead(comm: mpicoll.Communicator) -> None:
    """Of ranks that wait for it: it comes no further than memory for its calls goes."""
    if comm.rank:
        comm.recv(np.empty(6), 0)
    for _ in range(100):
        comm.bcast(np.ones(2))


@fault("each sends first", STUCK, "rank 1  send: no message was taken by rank 2 (tag 0)", seconds=600)
def each_sends_first(comm: mpicoll.Communicator) -> None:
    comm.send(np.ones(1 << 20), (comm.rank + 1) % 3)


@fault(
    "a message that nobody sends, before a collective",
    STUCK,
    "ranks 0, 2  call 3: barrier",
    "recv_object: no message came from rank 2 (tag 0)",
    seconds=600,
)
def a_message_that_nobody_sends_before_a_collective(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        comm.recv_object(2)


@fault(
    "the root receives first",
    STUCK,
    "rank 0     recv: no message came from rank 1 (tag 0)",
    "ranks 1-2  call 3: bcast of 6 float64 root 0",
    seconds=600,
)
def the_root_receives_first(comm: mpicoll.Communicator) -> None:
    if comm.rank:
        comm.bcast(x)
    else:
        comm.recv(x, 1)


@fault(
    "the root gathers first",
    STUCK,
    "rank 0  call 3: gather_object root 0",
    "rank 1  recv_object: no message came from rank 0 (tag 0)",
    seconds=600,
)
def the_root_gathers_first(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        comm.recv_object(0)
    elif not comm.gather_object(x):
        comm.barrier()


@fault(
    "a message has another tag",
    STUCK,
    "rank 0  recv: no message came from rank 2 (tag 1)",
    "send: no message was taken by rank 0 (tag 2)",
    seconds=600,
)
def a_message_has_another_tag(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.recv(x, 2, tag=1)
    if comm.rank == 2:
        comm.send(np.ones(1 << 20), 0, tag=2)


@fault(
    "who could send ends",
    HAS_LEFT,
    "recv: no message came from any rank (tag 0)",
    "ranks 1-2  have ended their program",
    seconds=600,
)
def who_could_send_ends(comm: mpicoll.Communicator) -> None:
    by_a_thread(comm)
    if comm.rank:
        sys.exit()
    comm.recv(x, None)


@fault(
    "who should receive ends",
    HAS_LEFT,
    "send: no message was taken by rank 1 (tag 0)",
    "has ended its program",
    seconds=600,
)
def who_should_receive_ends(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        sys.exit()
    comm.send(np.ones(1 << 22), 1)


@fault("nobody receives", TIME_IS_UP, "rank 1", "send: no message was taken by rank 2 (tag 0)")
def nobody_receives(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        comm.send(np.ones(1 << 22), 2)
