"""How a rank runs the program: as Python does. If it fails, it reports the error once and ends the job.

``python -m mpi4py`` ends the job with MPI_Abort, but only where MPI is initialised. If a rank fails before that, the
others may wait for it in MPI_Init for ever. This module also sets the variables that programs written for torchrun
read, gives the rank its cores, and makes its output appear line by line."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import stat
import sys
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import mpi4py

from mpicoll.launch import cores, elastic, failure, interrupt, lifecycle, mpi_init
from mpicoll.launch.launch_env import STDIN, is_elastic, launched_rank, note_rank
from mpicoll.launch.lifecycle import Hook
from mpicoll.machine.vendors import RANK_VARIABLES


def main() -> None:
    """Run ``script.py``, ``-m module`` or ``-c code`` and its arguments from the command line."""
    note_rank(by_launcher=True)
    failure.keep_stderr()
    os.environ.update(_for_torch())
    _print_lines()
    cores.take()
    mpi_init.watch_for_init()
    interrupt.listen()
    _take_stdin(launched_rank())
    lifecycle.set_excepthook(failure.report)
    if is_elastic():
        mpi4py.rc.finalize = False
        elastic.begin()
    rank, code = os.getpid(), 0
    del sys.argv[0]
    try:
        if not sys.argv:
            sys.exit("usage: python -m mpicoll.rank (script.py | -m module | -c code) [argument ...]")
        _run_program()
    except BaseException as error:
        code, mpi = _code(error), sys.modules.get("mpi4py.MPI")
        if code != 0 and os.getpid() == rank and not (mpi is not None and mpi.Is_finalized()):
            if not interrupt.came():  # else the others may still save their work
                elastic.fails(code)
            if isinstance(error, SystemExit) and launched_rank() is not None:
                failure.say_exit(error)
            lifecycle.add(Hook.END_JOB, partial(failure.end_job, code))
        raise
    finally:
        lifecycle.exits_with(code)
        if interrupt.came():
            lifecycle.add(Hook.WAIT_FOR_INTERRUPTED, partial(interrupt.wait_for_others, code != 0))


def _code(error: BaseException) -> int:
    """The exit code with which Python ends after this error."""
    status = error.code if isinstance(error, SystemExit) else 1
    number = status & 0xFF if isinstance(status, int) else 0
    return number or int(status not in (None, 0))  # 256 would be 0 to those who see the code


def _run_program() -> None:
    """Run the program that the command line names.

    runpy would take ``__main__`` back when a script is done. Threads and atexit handlers still go on then, and pickle
    looks for the program's classes there. So its module stays, as in plain Python."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__builtins__=builtins)
    path = sys.argv[0]
    if path == "-m":
        del sys.argv[0]
        runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]  # Python itself calls it for its own -m
        return
    if path == "-c":
        exec(_compiled(sys.argv.pop(1), "<string>"), vars(main))
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))  # it was for `python -m mpicoll.rank`
    file = os.path.abspath(path)
    vars(main).update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    exec(_compiled(Path(file).read_bytes(), file), vars(main))


def _compiled(code: str | bytes, file: str) -> CodeType:
    return compile(code, file, "exec", dont_inherit=True)  # else this file's `from __future__` would hold there, too


def _for_torch() -> dict[str, str]:
    """RANK, WORLD_SIZE and LOCAL_RANK. Without MASTER_ADDR, mpicoll's env:// connects the ranks by MPI."""
    by_mpi = [(told.rank, told.size, told.local_rank) for told in RANK_VARIABLES]
    # Where mpirun or mpiexec runs under Slurm, Slurm's variables describe their daemon.
    for variables in (*by_mpi, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")):
        if all(variable in os.environ for variable in variables):
            return dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), map(os.environ.__getitem__, variables), strict=True))
    return {}


def _print_lines() -> None:
    """Write what the rank prints at the end of each line. If it were written later, it would be lost where a rank is
    killed. If it were written in pieces, as with PYTHONUNBUFFERED, launchers would mix the lines of different ranks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _take_stdin(rank: int | None) -> None:
    """Let rank 0's stdin be that of ``mpicoll run``, and let the others' be empty (``jobs/run.py`` says why)."""
    path = os.environ.pop(STDIN, "")
    if not path:
        return
    with suppress(OSError):  # as in another container
        # Where nobody writes to a named pipe any more, to open it would wait for somebody who does.
        file = os.open(os.devnull if rank else path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        os.set_blocking(file, True)
        if stat.S_ISREG(os.fstat(file).st_mode):
            with open(path.replace("/fd/", "/fdinfo/")) as told:
                os.lseek(file, int(told.readline().split()[1]), os.SEEK_SET)  # "pos: 123"
        os.dup2(file, 0)
        os.close(file)
