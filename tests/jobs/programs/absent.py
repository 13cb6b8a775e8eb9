"""Faults: a rank does not come to a call."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

import numpy as np

import mpicoll
from tests.jobs.programs.declared import HERE, Faults
from tests.jobs.titles import HAS_LEFT, TIME_IS_UP

FAULTS = Faults()
fault = FAULTS.declare


@fault("busy", TIME_IS_UP, "rank 1", "has not arrived", HERE)
def busy(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        time.sleep(600)  # here


@fault("rank 0 busy", TIME_IS_UP, "rank 0", "has not arrived", HERE)
def rank_0_busy(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        time.sleep(600)  # here


@fault("stopped", TIME_IS_UP, "rank 1", "does not answer: it is stopped")
def stopped(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


@fault("rank 0 stopped", TIME_IS_UP, "rank 0", "does not answer: it is stopped")
def rank_0_stopped(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


@fault("the script ends", HAS_LEFT, "rank 1", "has not arrived and has ended its program", seconds=600)
def the_script_ends(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        sys.exit()


@fault("exit 0", HAS_LEFT, "rank 0", "has not arrived and has ended its program", seconds=600)
def exit_0(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        sys.exit(0)


@fault("_exit 0", seconds=600, any_mpi=False)
def _exit_0(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        os._exit(0)


@fault("rank 0, _exit 0", seconds=600)
def rank_0_exit_0(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        os._exit(0)


@fault("raises", "KeyError: 'of the program'", seconds=600)
def raises(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        raise KeyError("of the program")


@fault("killed", seconds=600)
def killed(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@fault("no memory", "Unable to allocate", seconds=600)
def no_memory(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
        np.ones(1 << 33)


@fault(
    "makes no communicator",
    f" in making a communicator, at {HERE}",
    "its ranks have not all come to this call. The job ends",
)
def makes_no_communicator(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        sys.exit()
    mpicoll.Communicator()  # here


@fault("is in no subset", "mpicoll: rank 2 has waited for", f" in subset([2, 0]), at {HERE}")
def is_in_no_subset(comm: mpicoll.Communicator) -> None:
    if comm.rank == 2:
        comm.subset([2, 0])  # here
    else:
        time.sleep(600)


@fault(
    "names a subset in another order",
    "mpicoll: rank ",
    " in subset([",
    "its ranks have not all come to this call. The job ends",
)
def names_a_subset_in_another_order(comm: mpicoll.Communicator) -> None:
    comm.subset([0, 1] if comm.rank else [1, 0])
    time.sleep(600)


@fault("makes no group of torch's", "mpicoll: rank 0 has waited for", f" in new_group, at {HERE}")
def makes_no_group_of_torchs(comm: mpicoll.Communicator) -> None:
    import torch.distributed as dist
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # to import torch may take one rank longer than the timeout
    dist.init_process_group("mpicoll")
    if comm.rank != 1:
        dist.new_group([0, 1])  # here
    time.sleep(600)


@fault(
    "gives another check",
    "Communicator: check: expected the same on all ranks; given 'watch' on rank 0, 'full' on ranks 1-2",
    seconds=600,
)
def gives_another_check(comm: mpicoll.Communicator) -> None:
    mpicoll.Communicator(check="full" if comm.rank else None)
