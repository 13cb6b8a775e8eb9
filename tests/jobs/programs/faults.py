"""A program of three ranks that goes wrong. Argument: the NAME of the fault.

Of a fault that is a function, the docstring has what must be said beside the title, a piece in each line. ``HERE`` is
the place of the function's line that ends with ``# here``."""

from __future__ import annotations

import gc
import inspect
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll

# First lines of the reports with which jobs end.
DIFFERENT = "mpicoll: the ranks made different calls. The job ends (communicator of ranks 0-2)"
FIRST_IS_SILENT = "The first rank, which compares ranks, does not answer. The job ends"
HAS_LEFT = "mpicoll: a rank has finished, and others wait for it. The job ends (communicator of ranks 0-2)"
TIME_IS_UP = "mpicoll: a call was not complete in time. The job ends (communicator of ranks 0-2)"
STUCK = "mpicoll: ranks wait for each other, and none of them can go on. The job ends (communicator of ranks 0-2)"
IS_GONE = "mpicoll: a rank's process is gone, and others wait for it. The job ends (communicator of ranks 0-2)"

x, long = np.ones(6), np.ones(1 << 17)


def begun() -> mpicoll.Communicator:
    """A communicator that has made three calls. Its timeout counts from now on, when all ranks are here."""
    comm = mpicoll.Communicator()
    timeout, comm.timeout = comm.timeout, 600
    for _ in range(3):
        comm.allreduce(x)
    MPI.COMM_WORLD.Barrier()
    comm.timeout = timeout
    return comm


def another(comm: mpicoll.Communicator) -> mpicoll.Communicator:
    """A new communicator of the same ranks."""
    made = comm.split(0)
    assert made is not None
    return made


Program = Callable[[mpicoll.Communicator], object]


@dataclass(frozen=True)
class Fault:
    """``program`` goes wrong, and this must be said of it. ``seconds`` is the timeout of calls."""

    program: Program
    said: tuple[str, ...]
    seconds: float = 600.0
    any_mpi: bool = True
    """Whether it is the same on all MPIs."""


LESS = [2, 1, 2]
FAULTS: dict[str, Fault] = {
    "rank 0 stopped": Fault(
        lambda comm: None if comm.rank else os.kill(os.getpid(), signal.SIGSTOP),
        (TIME_IS_UP, "rank 0", "does not answer: it is stopped"), seconds=3.0,
    ),
    "the script ends": Fault(
        lambda comm: sys.exit(0) if comm.rank == 1 else None,
        (HAS_LEFT, "rank 1", "has not arrived and has ended its program"),
    ),
    "os._exit(0)": Fault(lambda comm: os._exit(0) if comm.rank == 1 else None, (), any_mpi=False),
    "another check": Fault(
        lambda comm: mpicoll.Communicator(check="full" if comm.rank else None),
        ("Communicator: check: expected the same on all ranks; given 'watch' on rank 0, 'full' on ranks 1-2",),
    ),
    "a subset in another order": Fault(
        lambda comm: (comm.subset([0, 1] if comm.rank else [1, 0]), time.sleep(600)),  # type: ignore[func-returns-value]
        ("mpicoll: rank ", " in subset([", "its ranks have not all come to this call. The job ends"), seconds=3.0,
    ),
    "each sends first": Fault(
        lambda comm: comm.send(np.ones(1 << 20), (comm.rank + 1) % 3),
        (STUCK, "rank 1  send: no message was taken by rank 2 (tag 0)"),
    ),
    "the root receives first": Fault(
        lambda comm: comm.bcast(x) if comm.rank else comm.recv(x, 1),
        (STUCK, "rank 0     recv: no message came from rank 1 (tag 0)", "ranks 1-2  call 3: bcast of 6 float64 root 0"),
    ),
    "who should receive ends": Fault(
        lambda comm: sys.exit() if comm.rank == 1 else comm.send(np.ones(1 << 22), 1),
        (HAS_LEFT, "send: no message was taken by rank 1 (tag 0)", "has ended its program"),
    ),
    "another operation of objects": Fault(
        lambda comm: (comm.allreduce_object(comm.rank, min if comm.rank else "max"), time.sleep(600)),  # type: ignore[func-returns-value]
        (DIFFERENT, "allreduce_object max", "allreduce_object min"),
    ),
    "an alltoallv's counts": Fault(
        lambda comm: comm.alltoallv(np.ones(6 if comm.rank else 5), [2, 2, 2] if comm.rank else LESS, [2, 2, 2]),
        ("alltoallv: expected 2 elements from rank 0; it sends 1",), any_mpi=False,
    ),
    "long ago": Fault(
        lambda comm: [comm.bcast(x, root=0 if i or comm.rank < 2 else 1) for i in range(200_000)],
        ("mpicoll: the ranks made different calls",),
    ),
}  # fmt: skip
"""All of them, by name. The order decides which MPI one runs on."""


def fault(title: str, seconds: float = 600.0, any_mpi: bool = True) -> Callable[[Program], Program]:
    """A decorator of a function that goes wrong."""

    def declared(program: Any) -> Program:
        lines, first = inspect.getsourcelines(program)
        marked = [number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
        place = f"{Path(__file__).name}:{sum(marked)} in {program.__name__}"
        said = (inspect.getdoc(program) or "").replace("HERE", place).splitlines()
        name = program.__name__.replace("_", " ")
        FAULTS[name] = Fault(program, (title, *said), 3.0 if title == TIME_IS_UP else seconds, any_mpi)
        return program  # type: ignore[no-any-return]

    return declared


# -- a rank does not come to a call -----------------------------------------------------------------------------------


@fault(TIME_IS_UP)
def busy(comm: mpicoll.Communicator) -> None:
    """rank 1
    has not arrived
    HERE"""
    if comm.rank == 1:
        time.sleep(600)  # here


@fault("Unable to allocate")
def no_memory(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
        np.ones(1 << 33)


@fault("its ranks have not all come to this call. The job ends", seconds=3.0)
def makes_no_communicator(comm: mpicoll.Communicator) -> None:
    """in making a communicator, at HERE"""
    if comm.rank == 1:
        sys.exit()
    mpicoll.Communicator()  # here


@fault("mpicoll: rank 2 has waited for", seconds=3.0)
def is_in_no_subset(comm: mpicoll.Communicator) -> None:
    """in subset([2, 0]), at HERE"""
    if comm.rank == 2:
        comm.subset([2, 0])  # here
    else:
        time.sleep(600)


@fault("mpicoll: rank 0 has waited for", seconds=3.0)
def makes_no_group_of_torchs(comm: mpicoll.Communicator) -> None:
    """in new_group, at HERE"""
    import torch.distributed as dist

    MPI.COMM_WORLD.Barrier()  # to import torch may take one rank longer than the timeout
    dist.init_process_group("mpicoll")
    if comm.rank != 1:
        dist.new_group([0, 1])  # here
    time.sleep(600)


# -- ranks wait for each other in two places, or for a message that never comes ---------------------------------------


def by_a_thread(comm: mpicoll.Communicator) -> None:
    """A call of which nothing is left but the thread that has carried it out."""
    comm.iallreduce(np.ones(4, np.float16)).wait()


@fault(STUCK)
def two_groups_in_different_order(comm: mpicoll.Communicator) -> None:
    """ranks wait in another communicator, too
    allreduce sum of 131072 float64"""
    one, other = another(comm), another(comm)
    for group in (one, other) if comm.rank == 1 else (other, one):
        group.allreduce(long)


@fault(TIME_IS_UP)
def nobody_sends_and_nobody_receives(comm: mpicoll.Communicator) -> None:
    """recv_object: no message came from any rank (tag 0)
    recv: no message came from rank 0 (tag 0), at HERE
    send: no message was taken by rank 1 (tag 7)"""
    if comm.rank == 0:
        comm.recv_object()
    elif comm.rank == 1:
        comm.recv(x, 0)  # here
    else:
        comm.send(np.ones(1 << 22), 1, tag=7)


@fault(STUCK)
def each_waits_for_its_request_first(comm: mpicoll.Communicator) -> None:
    """rank 0  irecv: no message came from rank 1 (tag 0)"""
    comm.isend(x, (comm.rank + 1) % 3)
    comm.recv(np.empty(6), (comm.rank + 2) % 3)
    comm.barrier()
    request = comm.irecv(x, (comm.rank + 1) % 3)
    gc.freeze()
    request.wait()


@fault(STUCK)
def a_root_runs_ahead(comm: mpicoll.Communicator) -> None:
    """recv: no message came from rank 0 (tag 0)"""
    if comm.rank:
        comm.recv(np.empty(6), 0)
    for _ in range(100):  # the root comes no further than memory for its calls goes
        comm.bcast(np.ones(2))


@fault(HAS_LEFT)
def who_could_send_ends(comm: mpicoll.Communicator) -> None:
    """recv: no message came from any rank (tag 0)
    ranks 1-2  have ended their program"""
    by_a_thread(comm)
    if comm.rank:
        sys.exit()
    comm.recv(x, None)


# -- one rank frees a communicator that others use, or a call fails on it alone ---------------------------------------


@fault("mpicoll: a rank has freed the communicator, and others still use it")
def one_rank_frees_it(comm: mpicoll.Communicator) -> None:
    """has not arrived and has freed the communicator"""
    if comm.rank == 1:
        comm.free()
        time.sleep(600)


@fault("a rank has finished, and others wait for it")
def a_handler_ends_a_call_midway(comm: mpicoll.Communicator) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise InterruptedError("of a handler")

    signal.signal(signal.SIGALRM, handler)
    if comm.rank == 1:
        threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGALRM)).start()
    try:  # a schedule's steps return to Python, and a handler can run between them
        for _ in range(1 << 20):
            comm.allreduce(long, algorithm="ring")
    except InterruptedError:
        sys.exit()


@fault("", any_mpi=False)
def killed_at_a_random_moment(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        threading.Timer(random.random(), os.kill, [os.getpid(), signal.SIGKILL]).start()
    for _ in range(1 << 20):
        comm.allreduce(x)
        comm.allreduce(long, algorithm="ring")


def simulated() -> Any:
    """A device, and an array on it."""
    from tests.devices.simulated import Simulated

    device = Simulated()
    array = device.array(x)
    device.current().synchronize()
    return device, array


@fault("mpicoll: a call has failed on a rank, and others wait for it. The job ends (communicator of ranks 0-2)")
def a_device_fails_on_one_rank(comm: mpicoll.Communicator) -> None:
    """rank 1      call 3: allreduce sum of 6 float64 on simulated
    cannot use the communicator any more"""
    device, array = simulated()
    if comm.rank == 1:
        device.fail("copy")
    try:
        comm.allreduce(array)
    except mpicoll.errors.DeviceFailure:
        time.sleep(600)


@fault(DIFFERENT)
def another_sort_of_memory_on_one_rank(comm: mpicoll.Communicator) -> None:
    """6 float64 on simulated
    rank 1"""
    comm.allreduce(x if comm.rank == 1 else simulated()[1])  # it may return, with wrong data
    time.sleep(600)


@fault(HAS_LEFT)
def a_free_waits_for_a_collective(comm: mpicoll.Communicator) -> None:
    """has ended its program"""
    other = another(comm)
    if comm.rank == 1:
        sys.exit()
    other.iallreduce(x)
    other.free()  # it completes what was begun


@fault("StateError: allreduce sum of 6 float64: this communicator is in another call now")
def two_threads(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        threading.Thread(target=comm.allreduce, args=[x], daemon=True).start()
        while not comm._engine.recorder.under_way:
            time.sleep(0.01)
        comm.allreduce(x)
    time.sleep(600)


# -- calls that do not fit --------------------------------------------------------------------------------------------


@fault(DIFFERENT, any_mpi=False)
def calls_that_do_not_block(comm: mpicoll.Communicator) -> None:
    """iallreduce sum of 1000 float64
    ibarrier"""
    request = comm.iallreduce(np.ones(1000)) if comm.rank else comm.ibarrier()
    request.wait()
    sys.exit()


@fault("")
def without_stderr(comm: mpicoll.Communicator) -> None:
    os.close(2)
    if comm.rank:
        comm.allgather_object(1)
    else:
        comm.bcast_object(1)


@fault(DIFFERENT)
def finalize_by_the_program(comm: mpicoll.Communicator) -> None:
    """root 0
    root 1"""
    comm.bcast(x, root=comm.rank // 2)
    MPI.Finalize()
    sys.exit()


@fault(DIFFERENT)
def shared_arrays_that_differ(comm: mpicoll.Communicator) -> None:
    """ranks 0, 2  call 3: allreduce sum of 400000 float64, at
    rank 1      call 3: allreduce sum of 400001 float64, at"""
    array = comm.zeros(400_000 + (comm.rank == 1))
    comm.allreduce(array, out=array)
    comm.allreduce(array, out=array)


# -- programs of torch ------------------------------------------------------------------------------------------------


def tensor() -> Any:
    """After the default group has been made, and used."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpicoll")
    ones = torch.ones(6)
    dist.all_reduce(ones)
    return ones


@fault(DIFFERENT)
def async_against_sync_in_torch(comm: mpicoll.Communicator) -> None:
    import torch.distributed as dist

    ones = tensor()
    dist.all_reduce(ones, async_op=comm.rank == 1)
    dist.broadcast(ones, comm.rank // 2)
    dist.barrier()


@fault(DIFFERENT)
def asynchronous_in_torch(comm: mpicoll.Communicator) -> None:
    import torch.distributed as dist

    dist.all_reduce(tensor(), dist.ReduceOp.MAX if comm.rank else dist.ReduceOp.MIN, async_op=True)
    sys.exit()


@fault(STUCK)
def each_receives_first_beside_a_loader_of_torch(comm: mpicoll.Communicator) -> None:
    """recv: no message came from rank 0"""
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    ones = tensor()
    dist.all_reduce(ones, async_op=True).wait()  # the group has a thread of its own
    for _ in DataLoader(TensorDataset(ones), num_workers=1):  # it has threads, and a handler of SIGCHLD
        dist.recv(ones, (comm.rank + 1) % 3)


@fault("a rank has finished, and others wait for it")
def a_threads_call_though_another_thread_was_refused(comm: mpicoll.Communicator) -> None:
    """StateError
    : allreduce sum of 7 float32"""
    import torch
    import torch.distributed as dist

    from mpicoll.launch import board

    tensor()
    if comm.rank != 1:
        sys.exit()
    first = threading.Thread(target=dist.all_reduce, args=[torch.ones(7)])
    first.start()
    while board.last_call(1) != "allreduce sum of 7 float32":
        time.sleep(0.01)
    try:
        dist.all_reduce(torch.ones(7))
    except mpicoll.errors.StateError:  # the group is closed, but the call of the thread goes on
        print("StateError", flush=True)
    first.join()


if __name__ == "__main__":
    comm = begun()
    FAULTS[sys.argv[1]].program(comm)
    # No rank may come through this.
    comm.barrier()
    comm.barrier()
    print("went on")
