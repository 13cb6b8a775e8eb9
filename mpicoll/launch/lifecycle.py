"""What mpicoll does when a process forks, fails or ends, and whether the process can call MPI.

``Hook`` lists all of it, in order. Other modules hand their functions in with ``add``. No other file registers
functions with atexit, os.register_at_fork, sys.excepthook or MPI_Finalize, or replaces os._exit."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeAlias

ExceptHook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Event(Enum):
    """When functions are called.

    Python calls what was registered with atexit last first. An event at exit is registered when its first function is
    handed in: it comes after all that the program registers later, and before what it has registered until then."""

    FORK = auto()
    """In a child that was just forked."""
    RANK_FAILS = auto()
    """This rank ends a job that goes on when ranks are lost. The functions get the exit code."""
    MPI_BEGUN = auto()
    """The program has imported mpi4py.MPI, or MPI.Init has returned. ``mpi_init`` sees it."""
    JOB_FAILS = auto()
    """This rank ends the job. The functions get the reason, and whether it is an error of mpicoll's."""
    PROGRAM_ENDED = auto()
    """At exit. The program's end registers it: it comes before all that the program has registered."""
    END_OF_TORCH = auto()
    """At exit."""
    END_OF_CALLS = auto()
    """At exit, and when the program finalises MPI. ``import mpicoll`` does not register it, but the first use of a
    Communicator does: libraries that use one register their own functions after that, and can still make calls."""
    FINALIZE = auto()
    """When MPI is finalised, after ``END_OF_CALLS``. MPI can still be called. MPI_Finalize itself may wait for other
    ranks. No other thread of Python's works meanwhile, because mpi4py keeps the interpreter's lock."""
    END_OF_PROCESS = auto()
    """At exit, after all else: ``mpicoll.rank`` registers it before the program begins."""


class Hook(Enum):
    """All that is done, in the order in which it is done. Each line says what it is, and why it stands there."""

    # In a forked child, nothing of the parent's may be used, closed for the parent, or waited for.
    CLOSE_STDERR = (Event.FORK, "A launcher waits until nobody holds the rank's stderr: a child may live on.")
    LEAVE_ELASTIC_JOB = Event.FORK, "A child that exits with a failure is no rank that is lost."
    REFUSE_MPI = Event.FORK, "MPI does not serve a child: communicators refuse every use."
    LET_WATCHERS_GO = Event.FORK, "The watchers' threads are the parent's, and so are their connections."
    FORGET_THREADS = Event.FORK, "So are the threads of collectives that go on beside the program."
    FORGET_BLOCKS = Event.FORK, "The parent may write to blocks that are free here."
    FORGET_DEVICES = Event.FORK, "A GPU that the parent has used cannot be reached from a child."
    FORGET_PEERS = Event.FORK, "A child has no memory of other processes' GPUs open."

    WATCH_PROGRAM = (Event.MPI_BEGUN, "The program's own calls of mpi4py are watched, if that was asked for.")

    TELL_FAILURE = Event.RANK_FAILS, "`mpicoll run --elastic` ends the job: MPI_Abort may end this rank alone."

    # The error has been printed, and the other ranks still live.
    WRITE_FILES = Event.JOB_FAILS, "All processes write their last calls to files: soon they are gone."

    # After the program and its threads. Python has printed the program's error.
    WAIT_FOR_INTERRUPTED = (Event.PROGRAM_ENDED, "After Ctrl-C, others may save their work: who ends may end all.")
    END_JOB = Event.PROGRAM_ENDED, "A rank that fails ends the job, before anything waits for ranks that wait for it."

    # Before Python finalises MPI, no thread may be in a call of MPI's, and the ranks must be known to agree.
    FINISH_WORKERS = Event.END_OF_TORCH, "The workers of torch's groups end: they make calls until then."
    COMPLETE_COLLECTIVES = Event.END_OF_CALLS, "Collectives that go on beside the program end: they are calls, too."
    LEAVE_WATCHERS = Event.END_OF_CALLS, "Wait until the calls of all ranks are known to be the same: no more come."
    NAME_UNFINISHED = Event.END_OF_CALLS, "Name the calls that have not ended, now that all ranks are at their ends."
    CLOSE_COMMUNICATORS = Event.FINALIZE, "Communicators refuse every later use: MPI is as good as gone."

    # After all other handlers, which may need MPI.
    NOTE_END = (Event.END_OF_PROCESS, "Tell `mpicoll run` that the program is over: an end is no failure from here on.")
    LEAVE_JOB = Event.END_OF_PROCESS, "In an elastic job: end MPI, or the process without it if ranks were lost."
    END_CHILD = Event.END_OF_PROCESS, "A forked child ends here: mpi4py would finalise or abort the parent's MPI."

    def __init__(self, event: Event, why: str) -> None:
        self.event, self.why = event, why
        self.functions: list[Callable[..., object]] = []


_AT_EXIT = Event.PROGRAM_ENDED, Event.END_OF_TORCH, Event.END_OF_CALLS, Event.END_OF_PROCESS


def add(hook: Hook, function: Callable[..., object]) -> None:
    """Let this function be called where the list has the hook."""
    if hook.event in _AT_EXIT and not any(each.functions for each in Hook if each.event == hook.event):
        atexit.register(run, hook.event)
    hook.functions.append(function)


def run(event: Event, *arguments: object) -> None:
    """Call all functions of this event. If some raise exceptions, the others are called all the same."""
    with ExitStack() as functions:  # it calls them in reverse order
        for hook in reversed(Hook):
            for function in reversed(hook.functions if hook.event == event else ()):
                functions.callback(function, *arguments)


os.register_at_fork(after_in_child=partial(run, Event.FORK))


def run_at_finalize() -> None:
    """Let MPI_Finalize call the functions of ``END_OF_CALLS`` and ``FINALIZE`` first. MPI is initialised."""
    from mpi4py import MPI

    def finalised(*_: object) -> None:
        with ExitStack() as events:
            events.callback(run, Event.FINALIZE)
            events.callback(run, Event.END_OF_CALLS)

    # MPI_Finalize deletes the attributes of COMM_SELF before anything else.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=finalised), None)


def set_excepthook(hook: ExceptHook) -> ExceptHook:
    """Let this function report an exception that nothing catches. Returns the one that did so before."""
    previous, sys.excepthook = sys.excepthook, hook
    return previous


exit_now = os._exit  # Python's own


def set_exit(exit_: Callable[[int], NoReturn]) -> None:
    """Let ``os._exit`` be this function."""
    os._exit = exit_  # type: ignore[assignment]  # the name of its argument


# -- MPI in this process ----------------------------------------------------------------------------------------------


class Closable(Protocol):
    """An object that cannot be used after MPI was finalised, nor in a forked process."""

    def finalise(self) -> None:
        """Refuse every later use with an error that says that MPI was finalised. MPI can still be called."""

    def abandon(self, why: str) -> None:
        """Do the same in a process that must not call MPI."""


_living: weakref.WeakSet[Closable] = weakref.WeakSet()  # all such objects that exist
FORKED = "this process was forked from the one that initialised it, which MPI does not serve: communicate in the parent"
_forked = False  # whether this process was forked from one in which MPI was initialised
_code: int | None = None  # the code with which this process exits, if that is known


def watch(closable: Closable) -> None:
    """Close this object when MPI is finalised, and abandon it in a forked process."""
    _living.add(closable)


def _close_all() -> None:
    for closable in [*_living]:
        closable.finalise()


def _in_child() -> None:
    global _forked
    mpi = sys.modules.get("mpi4py.MPI")
    _forked = _forked or (mpi is not None and bool(mpi.Is_initialized()))
    for closable in [*_living]:
        closable.abandon(FORKED)


def is_forked() -> bool:
    """Whether this process was forked from one that uses MPI, and so cannot use it."""
    return _forked


def exits_with(code: int) -> None:
    """Note that this process comes to its end, with this exit code."""
    global _code
    _code = code


def _end_child() -> None:
    if _forked and _code is not None:
        flush(sys.stdout)
        flush(sys.stderr)
        os._exit(_code)


def flush(stream: object) -> None:
    """Flush it, if it can be: a program may have put an object of its own in its place, or have closed it."""
    with suppress(Exception):
        stream.flush()  # type: ignore[attr-defined]


def lives() -> bool:
    """Whether this process can call MPI now."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and not _forked


def progress() -> None:
    """Let MPI move on the messages of this process that are under way."""
    if lives():
        mpi: Any = sys.modules["mpi4py.MPI"]
        with suppress(mpi.Exception):  # a rank is lost
            mpi.COMM_WORLD.Iprobe()  # on COMM_SELF, MPICH looks at this rank's own messages alone


add(Hook.REFUSE_MPI, _in_child)
add(Hook.CLOSE_COMMUNICATORS, _close_all)
add(Hook.END_CHILD, _end_child)
