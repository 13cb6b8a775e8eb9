"""The backing files of the memory through which an MPI's ranks of a node send messages.

Open MPI 5 calls the file of a rank ``sm_segment.NODE.USER.JOB.RANK``, in /dev/shm. JOB is a hash of 16 bits of the
job's name, and Open MPI takes a file that is there as its own. So two jobs of one user on a node whose hashes are equal
write into the same memory: ranks crash, or wait for ever, or get messages of the other job. That is one of 65,536 pairs
of jobs. So each rank gets a folder of its own for its file.

Once MPI_Init has returned, all ranks of the node have opened these files, and nobody needs their names. They are
removed then, and no job leaves any, even if it is killed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from mpicoll.machine.vendors import BACKING_FILES, OPEN_MPI, RANK_VARIABLES

__all__ = ["own_folder", "remove_names", "when_mpi_is_imported"]

_MPI = "mpi4py.MPI"
"""The module that initialises MPI when it is imported."""


@contextmanager
def own_folder() -> Iterator[None]:
    """Let MPI put this process's file into a folder of its own, if it is imported within. The user's folder stays."""
    launched = next((told for told in RANK_VARIABLES if told.rank in os.environ), OPEN_MPI.ranks)
    if _MPI in sys.modules or OPEN_MPI.backing_folder in os.environ or launched != OPEN_MPI.ranks:
        yield
        return
    try:
        folder = tempfile.mkdtemp(prefix="mpicoll-", dir="/dev/shm")
    except OSError:  # Open MPI says what it cannot do without such memory
        yield
        return
    os.environ[OPEN_MPI.backing_folder] = folder
    try:
        yield
    finally:
        del os.environ[OPEN_MPI.backing_folder]
        shutil.rmtree(folder, ignore_errors=True)


def remove_names() -> None:
    """Remove the names of the files that this process has opened. MPI_Init must have returned."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        names = {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps}
        for name in filter(BACKING_FILES.fullmatch, names):
            Path(name).unlink(missing_ok=True)


class _Finder:
    """Among Python's finders of modules, the one that knows what to do before and after MPI is imported."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MPI:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)  # what the others find
        when_mpi_is_imported()
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def within(module: ModuleType) -> None:
                with own_folder():
                    execute(module)
                    remove_names()

            spec.loader.exec_module = within  # type: ignore[method-assign]
        return spec


def when_mpi_is_imported() -> None:
    """Do this for a program that imports mpi4py.MPI itself."""
    sys.meta_path.insert(0, _Finder)
