"""Communicators that MPI makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from mpicoll.errors import StateError

__all__ = ["make", "shrunk"]

Made = TypeVar("Made", bound=MPI.Comm)


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
