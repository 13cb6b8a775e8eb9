"""What a spawned rank does, and what it is handed: a folder with the call, where it leaves its failure."""

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

__all__ = ["CALL", "FAILURE", "LIFELINE", "main", "pickled_call", "program"]

CALL, FAILURE, LIFELINE = "call", "failure", "lifeline"


def program(folder: Path) -> list[str]:
    """What a rank runs."""
    return ["-c", "import sys; from mpicoll.launch.spawned import main; main(sys.argv[1])", str(folder)]


def pickled_call(fn: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """``fn`` and ``args`` with what a new process needs to unpickle them; ArgumentError if it could not."""
    from multiprocessing import spawn

    parts = {"fn": fn, "args": tuple(args)}
    for name, value in parts.items():
        try:
            parts[name] = pickle.dumps(value)
        except Exception as error:  # whatever a value's own __reduce__ raises
            raise ArgumentError("spawn", name, "what can be pickled", f"{value!r} ({error})") from error
    preparation = spawn.get_preparation_data("mpicoll.spawn")
    del preparation["authkey"]  # can only be handed to a process of multiprocessing's own
    main_file = preparation.get("init_main_from_path")
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
    """Have the kernel kill this process when the one that called spawn closes the lifeline or dies.

    Where the kernel cannot (F_SETSIG is Linux's), the launcher alone ends the ranks.
    """
    held = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):  # the parent lives
            os.read(held, 1)
            sys.exit("mpicoll.spawn: the process that called it is gone")


def main(folder: str) -> None:
    """Make the call that lies in ``folder``. The first rank that fails leaves its traceback there."""
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
    written = meeting / f"{FAILURE}.{os.getpid()}"
    written.write_text(failure)
    try:
        os.link(written, meeting / FAILURE)  # atomic, so a failure is either there as a whole or not at all
    except FileExistsError:
        return False
    return True
