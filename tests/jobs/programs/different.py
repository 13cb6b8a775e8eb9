"""Faults: calls that do not fit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np

import mpicoll
from tests.jobs.programs.begun import x
from tests.jobs.programs.declared import Faults
from tests.jobs.titles import DIFFERENT

FAULTS = Faults()
fault = FAULTS.declare


@fault("object", DIFFERENT, "allgather_object", "bcast_object root 0", seconds=600)
def an_object(comm: mpicoll.Communicator) -> None:
    if comm.rank:
        comm.allgather_object(1)
    else:
        comm.bcast_object(1)


@fault(
    "while an exception is handled",
    DIFFERENT,
    "allreduce sum of 6",
    "bcast of 6",
    "(while it handles ValueError: the cause)",
    seconds=600,
)
def while_an_exception_is_handled(comm: mpicoll.Communicator) -> None:
    try:
        if comm.rank == 1:
            raise ValueError("the cause")
        comm.allreduce(x)
    finally:
        comm.bcast(x)


@fault("an object's operation", DIFFERENT, "allreduce_object max", "allreduce_object min", seconds=600)
def an_objects_operation(comm: mpicoll.Communicator) -> None:
    op: str | Callable[[int, int], int] = min if comm.rank else "max"
    comm.allreduce_object(comm.rank, op)
    time.sleep(600)


@fault("calls that do not block", DIFFERENT, "iallreduce sum of 1000 float64", "ibarrier", seconds=600, any_mpi=False)
def calls_that_do_not_block(comm: mpicoll.Communicator) -> None:
    request = comm.iallreduce(np.ones(1000)) if comm.rank else comm.ibarrier()
    request.wait()
    sys.exit()


COUNTS = "alltoallv: expected 2 elements from rank 0; it sends 1"


@fault("an alltoallv's counts", COUNTS, seconds=600, any_mpi=False)
def an_alltoallvs_counts(comm: mpicoll.Communicator) -> None:
    less = comm.rank == 0
    comm.alltoallv(np.ones(6 - less), [2, 2 - less, 2], [2, 2, 2])


@fault("an alltoallv's counts, in a schedule", COUNTS, seconds=600)
def an_alltoallvs_counts_in_a_schedule(comm: mpicoll.Communicator) -> None:
    less = comm.rank == 0
    comm.alltoallv(np.ones(6 - less), [2, 2 - less, 2], [2, 2, 2], algorithm="pairwise")


@fault("without stderr", seconds=600)
def without_stderr(comm: mpicoll.Communicator) -> None:
    os.close(2)
    an_object(comm)


@fault("one call less", DIFFERENT, "bcast of 6", "barrier", seconds=600)
def one_call_less(comm: mpicoll.Communicator) -> None:
    for _ in range(3 if comm.rank else 2):
        comm.bcast(x)


@fault("long ago", "mpicoll: the ranks made different calls", seconds=600)
def long_ago(comm: mpicoll.Communicator) -> None:
    for i in range(200_000):
        if comm.rank:
            comm.bcast(x, root=0 if i or comm.rank < 2 else 1)
        else:
            comm.bcast(x)


@fault("MPI.Finalize by the program", DIFFERENT, "root 0", "root 1", seconds=600)
def finalize_by_the_program(comm: mpicoll.Communicator) -> None:
    from mpi4py import MPI

    comm.bcast(x, root=comm.rank // 2)
    MPI.Finalize()
    sys.exit()
