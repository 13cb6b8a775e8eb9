"""What a spawned rank does. It gets a folder, finds the call to make in it, and leaves its failure there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.launch.alone import launched_rank

CALL, FAILURE, LIFELINE = "call", "failure", "lifeline"
"""Files in the folder: the pickled call, the first failed rank's report, and a pipe that the parent holds open."""


def program(folder: Path) -> list[str]:
    """Python's arguments for a rank."""
    return ["-c", "import sys; from mpicoll.launch.spawned import main; main(sys.argv[1])", str(folder)]


def pickled_call(fn: Callable[..., Any], args: Sequence[Any], imports_main: bool = True) -> bytes:
    """``fn`` and ``args``, with what a new process needs to unpickle them. Raises ArgumentError if it could not.

    Without ``imports_main``, the new process does not import the script of this one, which may be no more than a
    program, and would run again."""
    from multiprocessing import spawn

    parts = {"fn": fn, "args": tuple(args)}
    for name, value in parts.items():
        try:
            parts[name] = pickle.dumps(value)
        except Exception as error:  # a value's own __reduce__ may raise anything
            raise ArgumentError("spawn", name, "what can be pickled", f"{value!r} ({error})") from error
    preparation = spawn.get_preparation_data("mpicoll.spawn")
    del preparation["authkey"]  # it can be pickled only for a process that multiprocessing starts
    main_file = preparation.get("init_main_from_path")
    if not imports_main:
        preparation = {k: v for k, v in preparation.items() if not k.startswith("init_main")}
    importable = os.path.exists(main_file) if main_file else _importable(preparation.get("init_main_from_name"))
    if getattr(fn, "__module__", None) == "__main__" and not importable:
        raise ArgumentError(
            "spawn",
            "fn",
            "a function that a new process can import, from a script or a module",
            f"{fn!r} of this session",
        )
    return pickle.dumps((preparation, parts["fn"], parts["args"]))


def _importable(main: str | None) -> bool:
    # multiprocessing does not import a package's __main__ again.
    return main is not None and main.rpartition(".")[2] != "__main__"


def _end_with_parent(lifeline: Path) -> None:
    """Make the kernel kill this process when the process that called spawn closes the lifeline, or ends.

    Only Linux can do that (F_SETSIG). Elsewhere the ranks depend on the launcher to end them.
    """
    held = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):  # this error says that the parent has the other end open
            os.read(held, 1)
            sys.exit("mpicoll.spawn: the process that called it is gone")


def main(folder: str) -> None:
    """Make the call that is in ``folder``. The first rank that fails leaves its traceback there."""
    from multiprocessing import spawn

    meeting = Path(folder)
    _end_with_parent(meeting / LIFELINE)
    rank = launched_rank()
    if rank is None:
        raise LaunchError("this MPI's launcher does not tell a process its rank")
    try:
        preparation, fn, args = pickle.loads((meeting / CALL).read_bytes())
        spawn.prepare(preparation)
        pickle.loads(fn)(rank, *pickle.loads(args))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return
        if not _is_first(meeting, f"rank {rank} failed:\n\n{traceback.format_exc()}"):
            raise
        sys.exit(1)  # the parent shows the traceback


def _is_first(meeting: Path, failure: str) -> bool:
    """Leave the failure's report in the folder, unless another rank has done so. Returns whether this was the first."""
    written = meeting / f"{FAILURE}.{os.getpid()}"
    written.write_text(failure)
    try:
        os.link(written, meeting / FAILURE)  # this is atomic: the report appears as a whole, or not at all
    except FileExistsError:
        return False
    return True
