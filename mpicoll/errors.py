"""What mpicoll raises. Every exception derives from :class:`MpicollError`.

::

    MpicollError
    ├── ArgumentError   (ValueError)    an argument of a call is wrong; raised before any data moves
    │   ├── DtypeError  (TypeError)     the dtype is unknown, or the operation is not defined on it
    │   └── DeviceError                 the memory is on a device that this call cannot reach
    ├── ScheduleError   (ValueError)    an algorithm's schedule is wrong; names the first rank, step and block
    ├── StateError      (RuntimeError, ValueError)  MPI or a group is not in a state that permits the call
    ├── MessageError    (RuntimeError)  what arrived is not what was asked for
    ├── DeviceFailure   (RuntimeError)  a device failed at its work, such as a copy
    ├── MismatchError   (RuntimeError)  the ranks of a communicator made different calls
    ├── RankLost        (RuntimeError)  ranks were killed; the others can go on without them
    ├── TimeoutError    (builtin TimeoutError, RuntimeError)  ranks did not answer in time
    └── LaunchError     (RuntimeError)  no MPI was found, ranks cannot connect to each other, or a spawned rank failed

An :class:`ArgumentError` carries ``operation``, ``argument``, ``expected`` and ``given`` and is raised
on the rank whose argument is wrong."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from types import TracebackType

from mpicoll.units import alike, named_in

__all__ = [
    "ArgumentError", "DeviceError", "DeviceFailure", "DtypeError", "LaunchError", "MessageError", "MismatchError",
    "MpicollError", "RankLost", "ScheduleError", "StateError", "TimeoutError",
]  # fmt: skip

PACKAGE = __file__.removesuffix("errors.py")  # what the names of mpicoll's files begin with


def without(trace: TracebackType | None, files: tuple[str, ...]) -> TracebackType | None:
    """The traceback without the frames of files whose names begin with one of these."""
    frames: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(files):
            frames.append(trace)
        trace = trace.tb_next
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


class MpicollError(Exception):
    """The base class of every exception that mpicoll raises."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: no frames of mpicoll, which say nothing to who wrote the program."""
        from IPython.core.getipython import get_ipython

        tb = without(self.__traceback__, (PACKAGE,))
        shell = get_ipython()
        assert shell is not None
        found: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, tb, tb_offset=1)
        return found


class ArgumentError(MpicollError, ValueError):
    """An argument of a call is wrong. Nothing was sent and nothing was written."""

    def __init__(self, operation: str, argument: str, expected: str, given: str) -> None:
        super().__init__(operation, argument, expected, given)
        self.operation, self.argument, self.expected, self.given = operation, argument, expected, given

    def __str__(self) -> str:
        return f"{self.operation}: {self.argument}: expected {self.expected}; given {self.given}"


def shown_argument(given: object) -> str:
    """Describes an argument that is no array, for ``given`` of an ArgumentError. A program that comes from mpi4py
    gives the result as the second argument."""
    return "an array (did you mean out=?)" if hasattr(given, "shape") and hasattr(given, "dtype") else repr(given)


class DtypeError(ArgumentError, TypeError):
    """The dtype is unknown, or the operation is not defined on it."""


class DeviceError(ArgumentError):
    """The memory is on a device that this call cannot reach."""


class ScheduleError(MpicollError, ValueError):
    """An algorithm's schedule does not do what its collective means.

    ``rank``, ``step`` and ``block`` say where the first fault is. Each is None where the
    fault is not at a single one. ``details`` are more lines: what the rank and its
    partners do there, and where the program says so."""

    def __init__(
        self,
        what: str,
        rank: int | None,
        step: int | None,
        block: int | None,
        problem: str,
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, rank, step, block, problem, details)
        self.what, self.rank, self.step, self.block, self.problem = what, rank, step, block, problem
        self.details = details

    def __str__(self) -> str:
        numbers = {"rank": self.rank, "step": self.step, "block": self.block}
        where = ", ".join(f"{name} {number}" for name, number in numbers.items() if number is not None)
        line = f"{self.what}: {where}: {self.problem}" if where else f"{self.what}: {self.problem}"
        return "\n  ".join((line, *self.details))


class StateError(MpicollError, RuntimeError, ValueError):
    """MPI or a group is not in a state that permits the call: not initialised, finalised, destroyed.

    A ValueError too, because that is what torch raises without a default group."""


class MessageError(MpicollError, RuntimeError):
    """What arrived is not what was asked for: another length, or ranks that disagree about a call."""


class DeviceFailure(MpicollError, RuntimeError):
    """A device failed at work that a call had handed in, such as a copy. What the call writes is not valid."""


class MismatchError(MpicollError, RuntimeError):
    """The ranks of a communicator made different calls. Raised on all of them, before any data moved.

    ``calls`` has what each rank called, by its rank in the communicator. Rank r of that is the job's rank
    ``in_job[r]``."""

    def __init__(self, operation: str, calls: dict[int, str], in_job: Sequence[int] = ()) -> None:
        super().__init__(operation, calls, in_job)
        self.operation, self.calls, self.in_job = operation, calls, in_job

    def __str__(self) -> str:
        rows = [f"  {named_in(self.in_job, who)}: {call}" for call, who in alike(self.calls).items()]
        return "\n".join([f"{self.operation}: the ranks made different calls:", *rows])


class RankLost(MpicollError, RuntimeError):
    """Ranks of the communicator were lost, and the job was started with ``mpicoll run --elastic``. Raised on all ranks
    that are left, by the call that they are in, and by every later one. :meth:`Communicator.shrink` goes on without.

    ``ranks`` are those that this rank knows of, as ranks of the communicator. Other ranks may know of others. Rank r of
    the communicator is the job's rank ``in_job[r]``."""

    def __init__(self, operation: str, ranks: Iterable[int], in_job: Sequence[int] = ()) -> None:
        self.operation, self.ranks, self.in_job = operation, sorted(ranks), in_job
        super().__init__(operation, self.ranks, in_job)

    def __str__(self) -> str:
        who = named_in(self.in_job, self.ranks) if self.ranks else "a rank"
        was = "were" if len(self.ranks) > 1 else "was"
        go_on = "those that are left can go on: shrink(), or in torch a new default group"
        return f"{self.operation}: {who} {was} lost: {go_on}"


class TimeoutError(MpicollError, builtins.TimeoutError, RuntimeError):
    """Ranks did not answer within the time that the caller gave.

    A RuntimeError too, because that is what torch raises then."""


class LaunchError(MpicollError, RuntimeError):
    """No MPI was found, the ranks were started so that they cannot connect to each other, or a spawned rank failed.

    ``remedy`` says what to do about ``problem``. It is empty where mpicoll does not know."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}" if self.remedy else self.problem
