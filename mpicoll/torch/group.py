"""Process groups: which ranks, and the communicator among them."""

from __future__ import annotations

import atexit
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed
from torch.autograd import profiler

from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import ArgumentError, StateError
from mpicoll.fabrics.job import Seat, here
from mpicoll.torch.agreement import Agreement
from mpicoll.torch.work import CollectiveWork, Work, Worker

if TYPE_CHECKING:
    from mpicoll.calls.plan import Plan

_torchs = torch.distributed.distributed_c10d._world

__all__ = ["GroupMember", "ProcessGroup", "group", "joined", "member", "renamed", "world"]


class ProcessGroup:
    """Some of the world's ranks, by their global ranks in group order, and the communicator among them."""

    def __init__(self, comm: Communicator, ranks: Sequence[int], name: str, timeout: timedelta) -> None:
        self.comm = comm
        self.ranks = tuple(ranks)
        self.group_name = name
        self.timeout = timeout
        self.worker = Worker()
        self.inside = 0
        """The thread that is in a synchronous collective of the group, by its number; 0 where none is."""
        self.agreement = Agreement(comm, self.ranks)
        self.local_rank = 0
        """Of a default group: this rank's among those of its node."""
        self.barriers = 0
        """Monitored barriers that this rank has called as the group's rank 0: a number that tells them apart."""

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.comm.rank

    def size(self) -> int:
        """Ranks in the group."""
        return self.comm.size

    def name(self) -> str:
        """The backend's name."""
        return "mpicoll"

    def __repr__(self) -> str:
        return f"<mpicoll group {self.group_name!r} of ranks {list(self.ranks)}>"

    def global_rank(self, group_rank: int) -> int:
        """The global rank of the group's rank."""
        return self.ranks[group_rank]

    def do(
        self,
        operation: str,
        run: Callable[[], None],
        result: Sequence[torch.Tensor],
        async_op: bool,
        given: Sequence[torch.Tensor] = (),
    ) -> Work | None:
        """Carry out ``run``, which writes ``result`` and reads ``given``, after what is pending.

        Returns before that if ``async_op``. A profiler sees a range, named as torch names its own backends', until it
        returns: one that another thread ends may outlive the profiler, and corrupt memory."""
        if not profiler._is_profiler_enabled:
            return self._do(run, result, async_op, given)
        with profiler.record_function(f"mpicoll:{operation}"):
            return self._do(run, result, async_op, given)

    def _do(
        self,
        run: Callable[[], None],
        result: Sequence[torch.Tensor],
        async_op: bool,
        given: Sequence[torch.Tensor] = (),
    ) -> Work | None:
        if self.inside:
            self.called_by_two()
        outer = self.inside
        if not async_op and self.worker.idle():
            self.inside = get_ident()
            try:
                run()
            finally:
                self.inside = outer
            return None
        for tensor in (*result, *given):
            if tensor.is_cuda:  # the worker's current stream is not the caller's
                torch.cuda.current_stream(tensor.device).synchronize()
        if not self.comm.any_thread:
            _say_in_line()
            work = CollectiveWork(run, list(result))
            work.carry_out()
            return work
        work = self.worker.submit(run, list(result))
        if async_op:
            return work
        if self.worker.is_here():  # it was carried out already: the program's thread may call at any moment
            work.wait()
            return None
        self.inside = get_ident()
        try:
            work.wait()
        finally:
            self.inside = outer
        return None

    def called_by_two(self) -> None:
        """Raise StateError for a call by a second thread, now and later; the group's own thread may call.

        Ranks would not agree whose call comes first. A group of which one rank takes part no more is of no use."""
        if self.worker.is_here() or self.inside == get_ident():
            return  # it may be called in the midst of its own call: by an object that is pickled, or by a signal
        self.comm.close(
            "two threads called its collectives at once, so that ranks do not agree whose comes first. Make a group "
            "for each thread: dist.new_group(), which an async_save takes as process_group"
        )
        raise StateError(f"{self} cannot be used any more: {self.comm.closed}")

    def plan(
        self, operation: str, names: dict[str, str], collective: str, x: Any, out: Any = None, **arguments: Any
    ) -> Plan:
        """The Communicator's plan; what is wrong with ``x`` or ``out`` is said in the caller's ``names`` of them."""
        try:
            return self.comm.plan(collective, x, out, **arguments)
        except ArgumentError as e:
            raise renamed(e, operation, names) from None

    def close(self) -> None:
        """Complete what is pending and give the communicator back. Raises what nobody has waited for."""
        try:
            self.worker.finish()
            self.comm.free()  # collective: not after a failure, which the other ranks may know nothing of
        finally:
            self.comm.close("it was destroyed")


def renamed(e: ArgumentError, operation: str, names: dict[str, str]) -> ArgumentError:
    """The Communicator's error as one of ``operation``, whose arguments have other ``names`` than its own."""
    expected = re.sub(r"\b(x|out)\b", lambda found: names.get(found[0], found[0]), e.expected)
    return type(e)(operation, names.get(e.argument, e.argument), expected, e.given)


@lru_cache(maxsize=1)
def _say_in_line() -> None:
    """Once a process."""
    warnings.warn(
        "mpicoll: this MPI was initialised without MPI_THREAD_MULTIPLE: asynchronous collectives complete before "
        "the call returns",
        stacklevel=4,
    )


class Groups:
    """The groups of one rank."""

    def __init__(self) -> None:
        self.groups: list[ProcessGroup] = []
        """Those that mpicoll.torch made, the default one first."""
        self.registered: list[ProcessGroup] = []
        """Those that torch.distributed made."""
        self.aborted: list[ProcessGroup] = []
        self.made = 0

    @property
    def default(self) -> ProcessGroup | None:
        """The default group: the one that ``init_process_group`` made, here or in torch.distributed; None before."""
        if self.groups:
            return self.groups[0]
        registered = _torchs.default_pg
        return registered if isinstance(registered, ProcessGroup) and here.seat is None else None

    def finish(self) -> None:
        """Complete what is pending. Raises StateError where that cannot be, because its group was aborted."""
        for g in (*self.groups, *self.registered):
            g.worker.finish()
        for g in self.aborted:
            if not g.worker.ended():
                raise StateError(
                    f"{g} was aborted in the middle of a collective, to which not all ranks have come. Nothing takes a "
                    "thread out of MPI, nor ends MPI while it is there: the job ends here"
                )

    def close(self) -> None:
        """Close every group, the newest first."""
        while self.groups:
            self.groups.pop().close()


_process = Groups()


def world() -> Groups:
    """The groups of this process, or of this thread where ranks are threads."""
    return _process if here.seat is None else _groups_of(here.seat)


def _groups_of(rank: Seat) -> Groups:
    found = rank.kept.get(__name__)
    if found is None:
        found = rank.kept[__name__] = Groups()
        rank.at_end.append(found.finish)
    assert isinstance(found, Groups)
    return found


def _finish_workers() -> None:
    # MPI is finalised after this; a collective that a thread is still in would be cut off.
    try:
        _process.finish()
    except Exception as e:  # nobody is left to catch it: it ends the job, as an uncaught one does
        sys.excepthook(type(e), e.with_traceback(None), None)  # its frames are ours
        sys.stderr.flush()
        os._exit(1)


atexit.register(_finish_workers)


class _WorldOfTheMoment(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group, None before init_process_group."""
        return world().default


class GroupMember(metaclass=_WorldOfTheMoment):
    """``WORLD`` is the default group; ``NON_GROUP_MEMBER`` stands for a group that this rank is not in."""

    NON_GROUP_MEMBER: ClassVar[int] = -100


class group(metaclass=_WorldOfTheMoment):
    """``group.WORLD`` is the default group, None before init_process_group."""


def member(given: Any, operation: str) -> ProcessGroup | None:
    """The group meant by ``given`` (None: the default one); None, with a warning, if this rank is not in it."""
    found = world().default if given is None else given
    if isinstance(found, ProcessGroup):
        if found.comm.closed:
            raise StateError(f"{operation}: {found} cannot be used any more: {found.comm.closed}")
        return found
    if found is None:
        raise StateError(f"{operation}: there is no default group: call init_process_group() first")
    if type(found) is int and found == GroupMember.NON_GROUP_MEMBER:
        default = world().default
        rank = default.rank() if default else "?"
        warnings.warn(
            f"{operation}: rank {rank} is not in the given group, and takes no part in the call", stacklevel=3
        )
        return None
    expected = "a group of mpicoll.torch, or None for the default one"
    raise ArgumentError(operation, "group", expected, repr(given))


def joined(given: Any, operation: str) -> ProcessGroup:
    """The group meant by ``given`` (None: the default one); ArgumentError if this rank is not in it."""
    found = None if given == GroupMember.NON_GROUP_MEMBER else member(given, operation)
    if found is None:
        raise ArgumentError(operation, "group", "a group that this rank is in", repr(given))
    return found
