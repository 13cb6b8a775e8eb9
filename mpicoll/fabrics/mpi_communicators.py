"""How MPI makes communicators: where it has no room for more, and where ranks are lost meanwhile."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mpi4py import MPI

from mpicoll.errors import StateError
from mpicoll.launch.failure import end_job, is_first
from mpicoll.supervise.sites import DaemonThread

Made = TypeVar("Made", bound=MPI.Comm)

_TOGETHER = 1 << 15  # a tag above all that MPI promises: ranks can be lost only with Open MPI, which has more
_LOOK, _PATIENCE = 0.1, 5.0
"""Seconds between looks for ranks that are lost, and in which MPI makes a communicator then, or raises an error. Else
it does neither."""


def make(how: Callable[..., Made], *arguments: Any) -> Made:
    """What this method of a communicator makes. Raises StateError where MPI makes none. If MPI has no room for more,
    all ranks raise it, because MPI looks for a number that is free on all of them."""
    try:
        return how(*arguments)
    except MPI.Exception as e:
        if e.Get_error_class() not in (MPI.ERR_OTHER, MPI.ERR_INTERN):  # what MPICH and Open MPI report then
            raise
        why = e.Get_error_string().rpartition(": ")[2]
        raise StateError(
            f"Communicator: the MPI library makes no communicator ({why}). It may have no room for more: MPICH has it "
            "for about 1,000 of mpicoll's, and Open MPI for 32,000. Free those that are not needed any more: free(), a "
            "with block, or torch's destroy_process_group(group)"
        ) from None


def shrunk(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A communicator of those that are left. Ranks may be lost meanwhile: all that are left get the same one."""
    part = comm.Shrink()
    assert isinstance(part, MPI.Intracomm)
    return part


@contextmanager
def together(comm: MPI.Intracomm, ranks: Sequence[int]) -> Iterator[None]:
    """For these ranks to make a communicator of themselves, by ``Create_group``, which waits for ever for a rank that
    is lost. They alone call this.

    First they wait until all have come. If one is lost before, this raises MPI.Exception on all others. If a rank of
    ``comm`` is lost afterwards and MPI does not come back, it ends the job: nothing but the end of the process ends the
    call. MPI may also wait for a rank that lives, and has given up because ``comm`` was cut."""
    others = [rank for rank in ranks if rank != comm.rank]
    sent = [comm.Isend(b"", rank, _TOGETHER) for rank in others]
    for request in [*(comm.Irecv(bytearray(), rank, _TOGETHER) for rank in others), *sent]:
        request.Wait()
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        yield  # only one thread may call MPI, and that one waits
        return
    over = threading.Event()

    def end_if_stuck() -> None:
        while not over.wait(_LOOK):
            if lost_of(comm) and not over.wait(_PATIENCE):
                if is_first("stuck"):
                    why = "a rank was lost while MPI made a communicator of some ranks, and MPI does not come back"
                    print(f"mpicoll: {why}. The job ends", file=sys.stderr)
                end_job(1)
                os._exit(1)

    looks = DaemonThread(end_if_stuck, "mpicoll making")
    looks.start()
    try:
        yield
    finally:
        over.set()
        looks.join()


def lost_of(comm: MPI.Intracomm) -> list[int]:
    MPI.COMM_SELF.Iprobe()  # MPI hears of a loss only while it is called
    mine, failed = comm.Get_group(), comm.Get_failed()
    found = MPI.Group.Translate_ranks(failed, None, mine)
    for group in (mine, failed):
        group.Free()
    return sorted(found)
