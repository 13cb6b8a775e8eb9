"""The backing files of the memory through which an MPI's ranks of a node send messages.

Open MPI 5 calls the file of a rank ``sm_segment.NODE.USER.JOB.RANK``, in /dev/shm. JOB is a hash of 16 bits of the
job's name, and Open MPI takes a file that is there as its own. So two jobs of one user on a node whose hashes are equal
write into the same memory: ranks crash, or wait for ever, or get messages of the other job. That is one of 65,536 pairs
of jobs. So each rank gets a folder of its own for its file while MPI begins.

Once MPI_Init has returned, all ranks of the node have opened these files, and nobody needs their names. They are
removed then, with the folder. Of a rank that ends earlier, the next job removes the folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from mpicoll.launch import last_calls
from mpicoll.machine.vendors import BACKING_FILES, OPEN_MPI, RANK_VARIABLES

_MPI = "mpi4py.MPI"
"""The module that begins MPI when it is imported, unless the program wants to do that itself."""
_WHERE, _PREFIX = "/dev/shm", "mpicoll-"

P = ParamSpec("P")
T = TypeVar("T")


def when_mpi_begins() -> None:
    """Give this process its folder when it imports mpi4py.MPI, or calls MPI.Init."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def remove_names() -> None:
    """Remove the names of the files that this process has opened. MPI_Init must have returned."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        names = {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps}
        for name in filter(BACKING_FILES.fullmatch, names):
            Path(name).unlink(missing_ok=True)


class _Finder:
    """Among Python's finders of modules, the one that puts what is to be done around the import."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MPI:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)  # what the others find
        when_mpi_begins()
        if spec is not None and (loader := spec.loader) is not None:
            begin = _with_folder(loader.exec_module, sys.modules["mpi4py"].rc.initialize)

            def execute(module: ModuleType) -> None:
                del loader.exec_module  # this function: from here on, the loader is as it was
                begin(module)
                if not module.Is_initialized():
                    for name in ("Init", "Init_thread"):
                        setattr(module, name, _with_folder(getattr(module, name)))

            loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _with_folder(begin: Callable[P, T], begins: bool = True) -> Callable[P, T]:
    """The function ``begin``, which ``begins`` MPI or may do so, with a folder of this process's own around it."""

    @wraps(begin)
    def within(*args: P.args, **kwargs: P.kwargs) -> T:
        if begins:
            last_calls.note_mpi(last_calls.BEGINS)
        try:
            with _own_folder():
                result = begin(*args, **kwargs)
                remove_names()
        finally:
            mpi: Any = sys.modules.get(_MPI)  # it may be half imported
            begun = hasattr(mpi, "Is_initialized") and mpi.Is_initialized()
            last_calls.note_mpi(last_calls.BEGUN if begun else 0)
        return result

    return within


@contextmanager
def _own_folder() -> Iterator[None]:
    """Let MPI put this process's file into a folder of its own. A folder that the user has named stays."""
    given = os.path.basename(os.environ.get(OPEN_MPI.backing_folder, _PREFIX))
    if not given.startswith(_PREFIX) or not _is_rank_of_open_mpi():  # a rank that begins MPI may have started this one
        yield
        return
    try:
        _remove_old_folders()
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{_space()}-{os.getpid()}-", dir=_WHERE)
    except OSError:  # Open MPI says what it cannot do without such memory
        yield
        return
    os.environ[OPEN_MPI.backing_folder] = folder
    try:
        yield
    finally:
        os.environ.pop(OPEN_MPI.backing_folder, None)
        shutil.rmtree(folder, ignore_errors=True)


def _is_rank_of_open_mpi() -> bool:
    """Whether it may be one. Alone, a process has nobody to send to."""
    told = next((told for told in RANK_VARIABLES if told.rank in os.environ), None)
    return told == OPEN_MPI.ranks or (told is None and "PMIX_RANK" in os.environ)


def _remove_old_folders() -> None:
    """Those of processes that have ended within MPI_Init."""
    own = re.compile(rf"{_PREFIX}{_space()}-(\d+)-.*")
    for folder in os.scandir(_WHERE):
        if (of := own.fullmatch(folder.name)) and _has_ended(of[1]):
            shutil.rmtree(folder.path, ignore_errors=True)


def _has_ended(process: str) -> bool:
    try:
        state = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"  # it only waits for its parent to take note


def _space() -> int:
    """The numbers of processes mean something within this namespace alone, such as a container."""
    return os.stat("/proc/self/ns/pid").st_ino
