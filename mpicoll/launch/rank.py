"""What each rank executes. It runs the program as ``python -m mpi4py`` does, and if a rank fails, it reports the error
once and ends the job.

``python -m mpi4py`` ends the job with MPI_Abort, but only where MPI is initialised. If a rank fails before that, the
others wait for it in MPI_Init: with MPICH for ever, and with Open MPI if they connect to the launcher just when it
gives up.

This module also sets the variables that programs written for torchrun read, and makes a rank's output appear line by
line.
"""

from __future__ import annotations

import atexit
import io
import os
import sys

import mpi4py
from mpi4py import run

from mpicoll.launch import elastic, failure

__all__ = ["main"]

# The variables in which launchers tell a rank its number, the number of ranks, and its number on its node. Slurm comes
# last: where mpirun or mpiexec runs under Slurm, Slurm's variables describe their daemon.
_SET_BY_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
_READ_BY_PROGRAMS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def main() -> None:
    """Run ``script.py``, ``-m module`` or ``-c code`` and its arguments from the command line."""
    os.environ.update(_for_torch())
    _print_lines()
    sys.excepthook = failure.hook
    if elastic.is_elastic():
        mpi4py.rc.finalize = False
        elastic.join()
    try:
        run.main()
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) else 1
        if status is not None and status != 0 and not _finalised():
            code = (status & 0xFF if isinstance(status, int) else 0) or 1  # 256 would be 0 to those who see the code
            elastic.fails(code)
            # It is done at exit, after the traceback was printed.
            atexit.register(failure.end_job, code)
        raise


def _for_torch() -> dict[str, str]:
    """RANK, WORLD_SIZE and LOCAL_RANK, as torchrun sets them. MASTER_ADDR is not among them: without it, mpicoll's
    env:// connects the ranks by MPI."""
    for variables in _SET_BY_LAUNCHERS:
        if all(variable in os.environ for variable in variables):
            return {name: os.environ[variable] for name, variable in zip(_READ_BY_PROGRAMS, variables, strict=True)}
    return {}


def _print_lines() -> None:
    """Write what the rank prints at the end of each line. If it were written later, it would be lost where a rank is
    killed. If it were written in pieces, as with PYTHONUNBUFFERED, launchers would mix the lines of different ranks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _finalised() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_finalized())
