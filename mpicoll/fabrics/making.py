"""Communicators that MPI makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from mpicoll.errors import StateError

__all__ = ["all_come", "make", "shrunk"]

Made = TypeVar("Made", bound=MPI.Comm)

_TAG = 1 << 15
"""Above all others. Ranks can be lost only with Open MPI, which has more tags than MPI promises."""


def make(how: Callable[..., Made], *arguments: Any) -> Made:
    """What this method of a communicator makes. Raises StateError where MPI makes none.

    If MPI has no room for more, all ranks raise it, because MPI looks for a number that is free on all of them."""
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


def all_come(comm: MPI.Intracomm, ranks: Sequence[int]) -> None:
    """Wait until all of these ranks have come here. They alone call this.

    Raises MPI.Exception on each of them if one is lost and has not come: ``Create_group`` would wait for that one for
    ever."""
    others = [rank for rank in ranks if rank != comm.rank]
    sent = [comm.Isend(b"", rank, _TAG) for rank in others]
    for request in [*(comm.Irecv(bytearray(), rank, _TAG) for rank in others), *sent]:
        request.Wait()
