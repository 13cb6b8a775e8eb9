"""The groups that a rank has, which one is the default group, and which one a caller's ``group`` means."""

from __future__ import annotations

import os
import sys
from typing import ClassVar, TypeAlias

import torch
import torch.distributed

from mpicoll.errors import ArgumentError, StateError
from mpicoll.fabrics.thread_job import here
from mpicoll.launch import elastic, lifecycle
from mpicoll.launch.lifecycle import is_forked
from mpicoll.supervise import sites
from mpicoll.torch.group import ProcessGroup
from mpicoll.torch.private import torchs_world

GivenGroup: TypeAlias = ProcessGroup | torch.distributed.ProcessGroup | int | None
"""What a caller may pass as ``group``: a group, None for the default one, or the int GroupMember.NON_GROUP_MEMBER."""


class Groups:
    """The groups of one rank."""

    def __init__(self) -> None:
        self.groups: list[ProcessGroup] = []
        """The groups that mpicoll.torch made. The first one is the default group."""
        self.registered: list[ProcessGroup] = []
        """The groups that torch.distributed made."""
        self.aborted: list[ProcessGroup] = []
        self.made = 0
        """How many groups ``new_group`` has made."""

    @property
    def default(self) -> ProcessGroup | None:
        """The default group. Either mpicoll.torch's ``init_process_group`` made it or torch.distributed's; None before.

        torch.distributed's default group counts if it is of the backend mpicoll and the ranks are processes.
        """
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

    def close(self) -> None:
        """Close every group, the newest first."""
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
    """Whether ``given`` is GroupMember.NON_GROUP_MEMBER."""
    return type(given) is int and given == GroupMember.NON_GROUP_MEMBER


def member(given: GivenGroup, operation: str) -> ProcessGroup | None:
    """The group that ``given`` means: None is the default group. Returns None if this rank is not in the group.

    Such a rank is warned. Raises StateError if the group was destroyed or there is no default group, and ArgumentError
    if ``given`` is no group of mpicoll's.
    """
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
