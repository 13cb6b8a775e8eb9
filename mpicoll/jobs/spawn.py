"""``spawn``: a function that is called in new ranks on this node, and what such a rank does.

A process beside the ranks starts them as ``mpicoll run`` does, and ends them when the process ends that called
``spawn``. A rank gets a folder, finds the call to make in it, and leaves its failure there."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVarTuple, overload

from mpicoll.errors import ArgumentError, LaunchError, StateError
from mpicoll.jobs.launcher import Job, find_launcher, of_no_rank
from mpicoll.jobs.run import run
from mpicoll.launch.launch_env import launched_rank, under_launcher
from mpicoll.machine import linux

_CALL, _FAILURE = "call", "failure"  # files in the folder: the pickled call, and the first failed rank's report

Arguments = TypeVarTuple("Arguments")


@overload
def spawn(fn: Callable[[int], object], args: tuple[()] = ..., nprocs: int = ...) -> None: ...


@overload
def spawn(fn: Callable[[int, *Arguments], object], args: tuple[*Arguments], nprocs: int = ...) -> None: ...


@overload
def spawn(fn: Callable[..., object], args: list[Any], nprocs: int = ...) -> None: ...


def spawn(fn: Callable[..., object], args: Sequence[Any] = (), nprocs: int = 1) -> None:
    """Call ``fn(rank, *args)`` in ``nprocs`` new ranks on this node, and return when all have returned.

    ``fn`` and ``args`` are pickled. ``fn`` may be defined in the script that calls this. Each rank imports that script
    again, so call this only under ``if __name__ == "__main__"``. If a rank raises an exception, the others are ended.
    No rank outlives the call, even if the calling process is killed.

    Raises ArgumentError if ``fn`` cannot be called, or ``fn`` or ``args`` cannot be pickled; StateError in a process
    that is a rank already; and LaunchError if there is no MPI, or if a rank fails, with its number and traceback."""
    if not callable(fn):
        raise ArgumentError("spawn", "fn", "a function", repr(fn))
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ArgumentError("spawn", "nprocs", "an integer of at least 1", repr(nprocs))
    if not isinstance(args, (tuple, list)):
        raise ArgumentError("spawn", "args", "a tuple or a list", repr(args))
    if under_launcher():
        raise StateError(
            "spawn: this process already is a rank of an MPI job. Start the script without a launcher, and call spawn "
            'only under `if __name__ == "__main__"`, because the new ranks import the script again'
        )
    code, failure = call_in_ranks(pickled_call(fn, args), nprocs)
    if failure:
        raise LaunchError(f"spawn: {failure}")
    if code:
        raise LaunchError(f"spawn: a rank ended without an exception, and the job with exit code {code}")


def call_in_ranks(
    call: bytes, nprocs: int, *, seconds: float | None = None, quiet: bool = False
) -> tuple[int | None, str]:
    """Let new ranks on this node make a call that ``pickled_call`` has pickled, and wait for their ends. After so
    many ``seconds`` the job is ended. If it is ``quiet``, nobody sees what its ranks print. The job is one of its own,
    even if this process is a rank. Raises LaunchError if there is no MPI.

    Returns the exit code, None if the job was ended, and the first failed rank's traceback, empty if none failed."""
    with tempfile.TemporaryDirectory(prefix="mpicoll-") as folder:
        Path(folder, _CALL).write_bytes(call)
        find_launcher()  # it raises the error here
        root = str(Path(__file__).parents[2])
        code = f"import sys; sys.path[0] = {root!r}; from mpicoll.jobs.spawn import attend; attend(*sys.argv[1:])"
        argv = [sys.executable, "-c", code, folder, str(nprocs), str(os.getpid())]
        output = subprocess.DEVNULL if quiet else None
        process = subprocess.Popen(  # its session is its own: a Ctrl-C in the terminal reaches this process alone
            argv, env=of_no_rank(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        ended = None
        try:
            with suppress(subprocess.TimeoutExpired):
                ended = process.wait(seconds)
        finally:
            if ended is None:
                end(process)
        failure = Path(folder, _FAILURE)
        return ended, failure.read_text() if failure.exists() else ""


def attend(folder: str, nprocs: str, parent: str) -> None:
    """Be the process beside so many ranks. The process ``parent`` has called spawn."""
    linux.end_with(int(parent), signal.SIGTERM)
    program = ["-c", "import sys; from mpicoll.jobs.spawn import main; main(sys.argv[1])", folder]
    sys.exit(run(Job(program, int(nprocs), here=True)))


def end(process: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    """Tell a process to end, and kill it if it has not ended after so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pickled_call(fn: Callable[..., Any], args: Sequence[Any], imports_main: bool = True) -> bytes:
    """``fn`` and ``args``, with what a new process needs to unpickle them. Raises ArgumentError if it could not.
    Without ``imports_main``, the new process does not import this one's script, which might run again."""
    from multiprocessing import spawn as by_multiprocessing

    pickled = []
    for name, value in (("fn", fn), ("args", tuple(args))):
        try:
            pickled.append(pickle.dumps(value))
        except Exception as error:  # a value's own __reduce__ may raise anything
            raise ArgumentError("spawn", name, "what can be pickled", f"{value!r} ({error})") from error
    preparation = by_multiprocessing.get_preparation_data("mpicoll.spawn")
    del preparation["authkey"]  # it can be pickled only for a process that multiprocessing starts
    main_file = preparation.get("init_main_from_path")
    if not imports_main:
        preparation = {k: v for k, v in preparation.items() if not k.startswith("init_main")}
    # multiprocessing does not import a package's __main__ again.
    main = preparation.get("init_main_from_name", "__main__")
    importable = os.path.exists(main_file) if main_file else main.rpartition(".")[2] != "__main__"
    if getattr(fn, "__module__", None) == "__main__" and not importable:
        expected = "a function that a new process can import, from a script or a module"
        raise ArgumentError("spawn", "fn", expected, f"{fn!r} of this session")
    return pickle.dumps((preparation, *pickled))


# -- in a rank --------------------------------------------------------------------------------------------------------


def main(folder: str) -> None:
    """Make the call that is in ``folder``. The first rank that fails leaves its traceback there."""
    from multiprocessing import spawn as by_multiprocessing

    if (rank := launched_rank()) is None:
        raise LaunchError("this MPI's launcher does not tell a process its rank")
    try:
        preparation, fn, args = pickle.loads(Path(folder, _CALL).read_bytes())
        by_multiprocessing.prepare(preparation)
        pickle.loads(fn)(rank, *pickle.loads(args))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return
        failure = f"rank {rank} failed:\n\n{traceback.format_exc()}"
        with suppress(FileExistsError), open(Path(folder, _FAILURE), "x", errors="backslashreplace") as file:
            file.write(failure)  # it may name files in bytes
            sys.exit(1)  # the parent shows the traceback
        raise  # another rank was the first
