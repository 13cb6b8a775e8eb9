"""What each rank executes: ``python -m mpi4py``, and an end to the job when a rank fails, with one report of why.

mpi4py ends the job with MPI_Abort, which an MPI that was never initialised does not do. The other ranks would wait
in MPI_Init: under MPICH for ever, under Open MPI if they connect to the launcher in the moment in which it gives up.

Besides, it sets the variables that programs written for torchrun read before they initialise anything, and has what a
rank prints leave it line by line.
"""

from __future__ import annotations

import atexit
import io
import os
import sys

from mpi4py import run

from mpicoll.launch import failure

__all__ = ["main"]

# Rank, size, and rank among those of the node, as launchers say them. Within Slurm, what Slurm itself says describes
# mpirun's or mpiexec's daemon, so it comes last.
_SAID_BY_LAUNCHERS = (
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
    try:
        run.main()
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) else 1
        if status is not None and status != 0 and not _finalised():
            # At exit, so that the traceback is printed first.
            atexit.register(failure.end_job, status if isinstance(status, int) else 1)
        raise


def _for_torch() -> dict[str, str]:
    """RANK, WORLD_SIZE and LOCAL_RANK. Without a MASTER_ADDR, torch's env:// still asks MPI for the rest."""
    for said in _SAID_BY_LAUNCHERS:
        if all(variable in os.environ for variable in said):
            return {name: os.environ[variable] for name, variable in zip(_READ_BY_PROGRAMS, said, strict=True)}
    return {}


def _print_lines() -> None:
    # Later, what a rank has printed is lost if it is killed; in pieces, as PYTHONUNBUFFERED has it, launchers mix it
    # with what other ranks print.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _finalised() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_finalized())
