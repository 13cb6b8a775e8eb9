"""Process groups: the communicator of some ranks and the order of their collectives, which groups a rank has, and which
one a caller's ``group`` means."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from threading import get_ident
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import torch
import torch.distributed

from mpicoll.calls.plan import Plans, Workspace
from mpicoll.calls.settings import DEFAULT_TIMEOUT
from mpicoll.communicator.base import engine_of
from mpicoll.communicator.communicator import Communicator
from mpicoll.communicator.engine.progress import ProgressThread
from mpicoll.errors import ArgumentError, StateError
from mpicoll.fabrics.thread_job import here
from mpicoll.launch import elastic, lifecycle
from mpicoll.launch.lifecycle import is_forked
from mpicoll.node.loaded import kernel
from mpicoll.supervise import sites
from mpicoll.torch.private import profiler, torchs_world
from mpicoll.torch.work import CollectiveWork, GroupStreams, Work


class ProcessGroup:
    """Some ranks of the job. Rank r of ``comm`` and of the group is the global rank ``ranks[r]``.

    Programs get one from ``new_group`` or as ``group.WORLD``, and pass it as ``group``. If ``device`` is not None, it
    takes tensors of the host and of this device alone."""

    def __init__(
        self, comm: Communicator, ranks: Sequence[int], name: str, timeout: timedelta, device: torch.device | None
    ) -> None:
        self.comm, self.engine, self.device = comm, engine_of(comm), device
        if device is not None:
            self.engine.devices.only = str(device)
        self.ranks = tuple(ranks)
        self.any_thread = self.engine.fabric.any_thread
        self.rank_of = {rank: place for place, rank in enumerate(self.ranks)}
        """The rank in this group of each global rank."""
        self.group_name = name
        self.timeout = timeout
        self.progress, self.streams = ProgressThread(), GroupStreams()
        self.scratch, self.wholes = (Workspace(), Workspace()), Plans[Any]()
        """Memory through which lists of tensors travel: of those that are given, and those that come. And the tensors
        in it, by the shapes of lists."""
        is_world = self.ranks == tuple(range(comm.size))
        self.turn: Any = (
            SimpleNamespace(inside=0) if kernel is None else kernel.Turn(self.engine.calls, self.progress, is_world)
        )
        """Whether a call comes at once, which the kernel asks. ``inside`` is the number of the thread that is in a
        synchronous collective of the group; 0 if none is."""
        self.callers: dict[str, Any] = {}
        """For each function that was called in the group, the Caller that checks its arguments."""
        self.local_rank = 0  # only in a default group: this process's rank among the ranks of its node
        self.barriers = 0
        """How many monitored barriers this rank has led, as the group's rank 0. The number tells them apart."""
        self.barrier_tags = self.engine.own_tags(2)
        """The tags of their messages: of those to the other ranks, and of those to rank 0."""

    @property
    def timeout(self) -> timedelta:
        """How long ``monitored_barrier`` waits where it is given no timeout, and how long a collective may take:
        MPICOLL_TIMEOUT, if that is less, or if this is torch's default of 30 minutes."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        seconds, of_all = timeout.total_seconds(), self.engine.info.settings.timeout
        if seconds > 0:
            # Either is the default where nobody has given one: torch passes it, too.
            given = [each for each in (seconds, of_all) if each != DEFAULT_TIMEOUT]
            self.comm.timeout = min(given, default=DEFAULT_TIMEOUT)

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.comm.rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self.comm.size

    def name(self) -> str:
        """The name of the backend, ``"mpicoll"``."""
        return "mpicoll"

    def __repr__(self) -> str:
        return f"<mpicoll group {self.group_name!r} of ranks {list(self.ranks)}>"

    def global_rank(self, group_rank: int) -> int:
        """The global rank of the group's rank ``group_rank``."""
        return self.ranks[group_rank]

    def in_turn(
        self,
        operation: str,
        run: Callable[[], None],
        result: Sequence[torch.Tensor],
        async_op: bool,
        given: Sequence[torch.Tensor] = (),
        has_begun: bool = False,
    ) -> Work | None:
        """Carry out ``run`` after all that is pending in the group. ``operation`` is its name for those who look on.

        ``run`` writes the tensors of ``result`` and reads those of ``given``. If ``async_op``, this returns a Work at
        once. Otherwise it returns None when ``run`` has ended, and raises what ``run`` raised. If the collective
        ``has_begun``, all that ``run`` has to do is to wait for its end.

        A profiler sees a range, named as torch names those of its own backends. The range ends when this returns. If
        the group's thread ended it, the range might outlive the profiler and corrupt memory."""
        with profiler.record_function(f"mpicoll:{operation}") if profiler._is_profiler_enabled else nullcontext():
            if outer := self.turn.inside:
                self.check_thread()
            progress = self.progress
            comes_at_once = not async_op and progress.idle()
            guard = None if comes_at_once else self.streams.guard((*result, *given))
            if not async_op and guard is None and not progress.is_here():
                # To wait here costs less than to hand it in. Memory of a device goes on: there a wait is longer.
                self.turn.inside = get_ident()
                try:
                    if not comes_at_once:
                        progress.drain()
                    run()
                finally:
                    self.turn.inside = outer
                return None
            work = CollectiveWork(run, list(result), guard)
            work.has_begun = has_begun
            if not self.any_thread:  # without MPI_THREAD_MULTIPLE, no other thread may call MPI
                work.execute()
                work.let_go()
                return work
            progress.submit(work, max([each.nbytes for each in result], default=0))
            if async_op:
                return work
            if not progress.is_here():  # else submit has carried it out. `inside` belongs to the program's thread.
                self.turn.inside = get_ident()
            try:
                work.wait()
            finally:
                self.turn.inside = outer
            return None

    def check_thread(self) -> None:
        """Raise StateError if another thread is in a collective of the group, and refuse all later calls too.

        Ranks would not agree whose collective comes first. From then on this rank takes no part in the group's
        collectives, so the group is of no more use."""
        # A thread may call while it is in a call of its own: an object that is pickled may, and so may a signal's
        # handler. So may a callback, which the thread runs that carries a collective out.
        if self.progress.is_here() or self.turn.inside == get_ident():
            return
        self.engine.close(
            "two threads called its collectives at once, so that ranks do not agree whose comes first. Make a group "
            "for each thread: dist.new_group(), which an async_save takes as process_group",
            goes_on=True,
        )
        raise StateError(f"{self} cannot be used any more: {self.comm.closed}")

    def close(self) -> None:
        """Complete what is pending and free the communicator. Raises a failure that the program has not seen."""
        try:
            self.progress.finish()
            self.comm.free()  # collective: not after a failure, of which the other ranks may know nothing
        finally:
            self.engine.close("it was destroyed")
            self.callers.clear()  # they refer to the group


GivenGroup: TypeAlias = ProcessGroup | torch.distributed.ProcessGroup | int | None
"""What a caller may pass as ``group``: a group, None for the default one, or the int GroupMember.NON_GROUP_MEMBER."""


class Groups:
    """The groups of one rank."""

    def __init__(self) -> None:
        self.groups: list[ProcessGroup] = []  # the groups that mpicoll.torch made. The first one is the default group
        self.registered: list[ProcessGroup] = []  # the groups that torch.distributed made
        self.aborted: list[ProcessGroup] = []
        self.made = 0  # how many groups ``new_group`` has made

    @property
    def default(self) -> ProcessGroup | None:
        """The default group. Either mpicoll.torch's ``init_process_group`` made it or torch.distributed's; None before.

        torch.distributed's default group counts if it is of the backend mpicoll and the ranks are processes."""
        if self.groups:
            return self.groups[0]
        registered = torchs_world.default_pg
        return registered if isinstance(registered, ProcessGroup) and here.seat is None else None

    def finish(self) -> None:
        """Complete what is pending. Raises StateError if an aborted group's thread is still in a collective."""
        for g in (*self.groups, *self.registered):
            g.progress.finish()
        for g in self.aborted:
            if not g.progress.has_ended():
                raise StateError(
                    f"{g} was aborted in the middle of a collective, to which not all ranks have come. Nothing takes a "
                    "thread out of MPI, nor ends MPI while it is there: the job ends here"
                )

    def begin(self, g: ProcessGroup) -> None:
        """The default group is there."""
        self.groups = [g]
        if kernel is not None and self is _process:
            kernel.set_default_turn(g.turn, False)

    def close(self) -> None:
        """Close every group, the newest first."""
        if kernel is not None and self is _process:
            kernel.set_default_turn(None, False)
        while self.groups:
            self.groups.pop().close()


_process = Groups()


def world() -> Groups:
    """The groups of this process, or of this thread if the ranks are threads."""
    if (seat := here.seat) is None:
        return _process
    found = seat.kept.get(__name__)
    if found is None:
        found = seat.kept[__name__] = Groups()
        seat.at_end.append(found.finish)
    assert isinstance(found, Groups)
    return found


def _finish_workers() -> None:
    if is_forked():  # the threads are the parent's alone
        return
    # Python finalises MPI after this. That would cut off a collective in which a worker's thread still is.
    try:
        _process.finish()
    except Exception as e:  # nobody can catch it now: print it as Python does, and end the job
        sys.excepthook(type(e), e.with_traceback(None), None)  # the traceback shows only mpicoll
        sys.stderr.flush()
        elastic.fails(1)
        os._exit(1)


lifecycle.add(lifecycle.Hook.FINISH_WORKERS, _finish_workers)


class _HasDefaultGroup(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group; None before ``init_process_group``."""
        return world().default


class GroupMember(metaclass=_HasDefaultGroup):
    """``WORLD`` is the default group. ``NON_GROUP_MEMBER`` stands for a group that this rank is not in."""

    NON_GROUP_MEMBER: ClassVar[int] = -100


class group(metaclass=_HasDefaultGroup):
    """``group.WORLD`` is the default group; None before ``init_process_group``."""


def is_no_group(given: object) -> bool:
    return type(given) is int and given == GroupMember.NON_GROUP_MEMBER


def member(given: GivenGroup, operation: str) -> ProcessGroup | None:
    """The group that ``given`` means: None is the default group. Returns None if this rank is not in the group.

    Such a rank is warned. Raises StateError if the group was destroyed or there is no default group, and ArgumentError
    if ``given`` is no group of mpicoll's."""
    found = world().default if given is None else given
    if isinstance(found, ProcessGroup):
        if found.comm.closed:
            if found.comm.lost:
                found.engine.check_open(operation)  # raises RankLost
            raise StateError(f"{operation}: {found} cannot be used any more: {found.comm.closed}")
        return found
    if found is None:
        raise StateError(f"{operation}: there is no default group: call init_process_group() first")
    if is_no_group(found):
        default = world().default
        rank = default.rank() if default else "?"
        sites.warn(f"{operation}: rank {rank} is not in the given group, and takes no part in the call")
        return None
    expected = "a group of mpicoll.torch, or None for the default one"
    raise ArgumentError(operation, "group", expected, repr(given))


def joined(given: GivenGroup, operation: str) -> ProcessGroup:
    """The group that ``given`` means. Raises ArgumentError if this rank is not in it."""
    found = None if is_no_group(given) else member(given, operation)
    if found is None:
        raise ArgumentError(operation, "group", "a group that this rank is in", repr(given))
    return found
