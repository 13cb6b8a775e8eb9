"""What a communicator keeps: its fabric, its rules, its plans, who watches over it, and what closes it."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING

from mpicoll import algorithms
from mpicoll.arrays.dtypes import Op
from mpicoll.calls.plan import CachedPlan, Plans, Workspace, key_by
from mpicoll.calls.settings import checked_check, checked_timeout
from mpicoll.communicator.engine import kinds, unfinished
from mpicoll.communicator.engine.checks import Agreement, same_settings
from mpicoll.communicator.engine.device_calls import DeviceCalls
from mpicoll.communicator.engine.message import Message, Startable
from mpicoll.communicator.engine.requests import InFlight, hold_back
from mpicoll.devices import cuda
from mpicoll.errors import ArgumentError, MessageError, MismatchError, MpicollError, RankLost, StateError
from mpicoll.fabrics.fabric import Envelope, Fabric
from mpicoll.fabrics.routes.devices import ipc
from mpicoll.fabrics.thread_job import here
from mpicoll.launch import lifecycle, mpi_init
from mpicoll.machine import blocks
from mpicoll.node.loaded import kernel
from mpicoll.supervise import watch, watched
from mpicoll.supervise.record import FREED, Recorder
from mpicoll.supervise.sites import is_program
from mpicoll.supervise.watched import Watched

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpicoll.fabrics.mpi import MPIFabric

    OpLike = str | Op | MPI.Op
    """A reduction: its name, an Op, or one of mpi4py's operations."""

_SECONDS_TO_KNOW = 5.0  # what it may take until a rank knows why another one has cut their communicator
_PAUSE = 0.01


class Base:
    """A fabric, what was bound over it, and whether it can still be used."""

    closed: str  # why the communicator cannot be used any more. Empty while it can
    lost = False  # whether it is closed because ranks were lost: those that are left can ``shrink`` it

    def __init__(
        self,
        comm: MPI.Comm | Fabric | None = None,
        check: str | None = None,
        timeout: float | None = None,
        reproducible: bool | None = None,
    ) -> None:
        if check is not None:
            checked_check(check, "Communicator", "check")
        if timeout is not None:
            checked_timeout(timeout, "Communicator", "timeout")
        if reproducible is not None and type(reproducible) is not bool:
            raise ArgumentError("Communicator", "reproducible", "True, False or None", repr(reproducible))
        self.fabric = fabric = fabric_of(comm)
        self.failure, self.address, self.key = fabric.failure, fabric.address, key_by(fabric.address)
        self.plans: Plans[CachedPlan] = Plans()
        self.bound_messages: Plans[Message] = Plans()
        self.startable: Plans[Startable] = Plans()
        self.tells_kinds, self.most_tag = False, fabric.most_tag
        self.under_way = InFlight(fabric.failure, fabric.rank)
        self.under_way.any_thread = bool(fabric.info.library) and fabric.any_thread and fabric.elastic is None
        self.rank, self.size, self.closed = fabric.rank, fabric.size, ""
        settings = fabric.info.settings
        if reproducible is not None:
            settings = replace(settings, reproducible=reproducible)
        self.info = replace(fabric.info, settings=settings)
        self.copies = Workspace()
        self.devices = DeviceCalls(fabric, self.info)
        self.recorder = Recorder()
        self.under_way.begin_message = self.recorder.begin_message
        self.calls = None
        if kernel is not None:
            self.calls = kernel.Calls(weakref.ref(self), self.recorder, self.rank, self.under_way)
        self._timeout = settings.timeout if timeout is None else float(timeout)
        self._given = check, reproducible
        check = check or settings.check
        self.cut = Cut(fabric.elastic) if fabric.elastic is not None else None
        if self.cut is not None:
            self.under_way.loss = self.cut.why
        lifecycle.watch(self)
        algorithms.binders.add(self)
        self.watched = None
        try:
            if not isinstance(comm, Fabric):  # else it was made of another communicator, and has its check
                same_settings(fabric, check=check, reproducible=settings.reproducible)
            self.agreement = None
            if check == "full" and self.size > 1:
                self._limit_messages()
                if fabric.info.library:  # threads compare the dtypes themselves
                    self.tells_kinds, self.most_tag = True, self.most_tag // kinds.KINDS
                self.agreement = Agreement(fabric, self._timeout)
            self.under_way.waits.unreceived = partial(_unreceived, weakref.ref(fabric), self.tells_kinds)
            if (check != "off" or self.cut is not None) and self.size > 1:  # a watcher cuts it, and tells of losses
                self.watched = self._watched()
            if self.watched is not None:
                self.under_way.compare = partial(watch.compare, self.watched)
        except self.failure as e:
            raise self.error("Communicator", e) from e

    def _watched(self) -> Watched | None:
        """What is watched over; None where the ranks have no common world. Collective."""
        fabric, waits, agrees = self.fabric, self.under_way.waits, self.agreement is not None
        ranks = fabric.in_world()
        if not ranks:
            return None
        settings = fabric.info.settings
        group = watch.Group(ranks, fabric.rank, fabric.info.one_node, fabric.allgather)
        return watch.watch(group, self.recorder, waits, self._timeout, agrees, self.cut, settings.dump, settings.trace)

    @property
    def settings(self) -> tuple[str | None, float, bool | None]:
        """``check``, ``timeout`` and ``reproducible``, for those who make a communicator of this one."""
        check, reproducible = self._given
        return check, self._timeout, reproducible

    @property
    def limit(self) -> float:
        """Seconds in which the ranks must come to where a communicator is made of this one."""
        return self._timeout if self.watched is not None or self.agreement is not None else inf

    @property
    def timeout(self) -> float:
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = checked_timeout(seconds, "Communicator", "timeout")
        if self.watched is not None:
            self.watched.timeout = self._timeout
        if self.agreement is not None:
            self.agreement.timeout = self._timeout
            self._limit_messages()

    def _limit_messages(self) -> None:
        if self.fabric.info.library:  # threads notice by themselves that no message can come any more
            self.under_way.timeout = self._timeout
            this = weakref.ref(self)  # messages under way may outlive their communicator

            def timed_out(why: str) -> None:
                if (comm := this()) is not None:
                    comm.close(why)

            self.under_way.timed_out = timed_out

    def check_open(self, operation: str) -> None:
        """Raise StateError, on behalf of ``operation``, if the communicator cannot be used any more."""
        if self.lost and self.cut is not None:
            raise self.cut.loss(operation)
        if self.closed:
            raise StateError(f"{operation}: this communicator cannot be used any more: {self.closed}")

    def break_off(self, plan: object, operation: str, e: BaseException) -> None:
        """Close the communicator, because the plan has raised ``e``, or whatever else has made a call.

        A signal's handler that raises may find the call complete on this rank. The communicator is closed all the same:
        a program cannot know that, and does not get the result, with which the other ranks go on."""
        if refused(e) or (isinstance(e, ArgumentError) and e.argument == "algorithm"):
            # A stream that captures, before anything was sent. Other ranks may have been refused before they began. Or
            # an algorithm needs memory that the ranks lack, which all of them learned together. Or ranks are threads:
            # what broke their job is said by every later call.
            self.recorder.retract()
            return
        hold_back((plan, e.__traceback__, _frames()))
        error = None
        try:
            # What a collective leaves that a loss has ended may raise anything.
            elastic = self.fabric.elastic
            is_cut = elastic is not None and isinstance(e, Exception) and elastic.is_cut(e)
            error = self.error(operation, e) if isinstance(e, self.failure) or is_cut else None
            unexpected = error is None and isinstance(e, Exception) and not isinstance(e, MpicollError)
            if self.watched is not None and (unexpected or isinstance(error or e, MessageError)):
                # Different calls are the likely reason. They may have taken each other's messages, which raises
                # anything. If so, the job ends with a table.
                watch.compare(self.watched)
        finally:  # a signal's handler may raise once more
            self.end_midway(operation, e)
        if error is not None:
            raise error from e

    def error(self, operation: str, e: BaseException) -> MpicollError:
        """The error of a call in which the MPI library has reported ``e``."""
        error = self.cut.why(operation, e) if self.cut is not None else None
        if isinstance(error, RankLost):
            self.lost = True
            self.close("ranks were lost")
        return error or MessageError(f"{operation}: the MPI library reports: {e}")

    def broke_off(self, plan: object, operation: str, e: BaseException, x: object, out: object) -> None:
        """The same for the kernel. This frame holds the arrays ``x`` and ``out``."""
        self.break_off(plan, operation, e)

    def end_midway(self, operation: str, e: BaseException) -> None:
        how = "was not the same on all ranks" if isinstance(e, MismatchError) else "ended midway"
        self.close(f"its {operation} {how}, so its ranks may be at different calls; make a new one ({e})")

    def forget_plans(self) -> None:
        for plans in (self.plans, self.bound_messages, self.startable):
            plans.clear()
        if self.calls is not None:
            self.calls.forget(False)

    def close(self, why: str, goes_on: bool = False) -> None:
        """Let every later use raise a StateError that says ``why``. Not collective: what MPI holds is not freed. The
        watcher still looks after a call with which another thread ``goes_on``."""
        self.closed = why
        self.recorder.close(goes_on)
        self.forget_plans()
        self.address = lambda array: 0  # MPICH ends a process that asks it after its end
        self.key = key_by(self.address)

    def finalise(self) -> None:
        self.close("MPI was finalised")

    def free(self) -> None:
        """Give back what the fabric holds. Collective. Freeing it again does nothing."""
        if not self.closed:
            self.under_way.let_go()
            self.recorder.state = FREED
            self.close("it was freed")
            self.fabric.free()

    def abandon(self, why: str) -> None:
        """Close it in a process that may not call MPI, such as one that was forked: it gives no requests back."""
        hold_back((self.plans, self.bound_messages, self.startable))
        if self.calls is not None:
            self.calls.forget(True)
        self.plans, self.bound_messages, self.startable = Plans(), Plans(), Plans()
        self.under_way.abandon(why)
        self.close(why)


class Cut:
    """Ends a communicator whose ranks were lost, or cannot go on with it: it cuts it in the watcher's thread, and says
    why in the thread whose call ends by that."""

    def __init__(self, fabric: MPIFabric) -> None:
        self._fabric, self._in_job = weakref.ref(fabric), fabric.in_world()  # a program may drop a communicator
        self._error: MpicollError | None = None

    def look(self) -> list[int]:
        """See whether ranks of the communicator are lost, and cut it then. Returns which."""
        fabric = self._fabric()
        lost = fabric.lost() if fabric is not None else []
        if fabric is not None and lost:
            fabric.cut()
        return lost

    def fail(self, error: MpicollError) -> None:
        """The ranks cannot go on together, for this reason."""
        self._error = self._error or error
        if (fabric := self._fabric()) is not None:
            fabric.cut()

    def why(self, operation: str, e: BaseException) -> MpicollError | None:
        """The error of a call that the fabric has ended with ``e``; None if it has nothing to do with this."""
        fabric = self._fabric()
        if fabric is None or not fabric.is_cut(e):
            return None
        fabric.cut()  # other ranks may be in calls that do not need the lost one
        deadline = time.monotonic() + _SECONDS_TO_KNOW
        while not (self._error or fabric.lost()) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return self._error or self.loss(operation)

    def loss(self, operation: str) -> RankLost:
        fabric = self._fabric()
        return RankLost(operation, fabric.lost() if fabric is not None else (), self._in_job)


def fabric_of(comm: MPI.Comm | Fabric | None) -> Fabric:
    """A fabric for a Communicator over ``comm``. If that is None, its ranks are those of the job of threads that this
    thread is in, or else those of MPI's world."""
    if isinstance(comm, Fabric):
        return comm
    if comm is None and here.seat is not None:
        from mpicoll.fabrics.threads import ThreadFabric

        return ThreadFabric.of(here.seat)
    mpi_init.checked_world()  # this also loads MPI, which the next line needs
    from mpicoll.fabrics.mpi import MPIFabric

    return MPIFabric.of_world() if comm is None else MPIFabric(comm)


def refused(e: BaseException) -> bool:
    """Whether the exception that ended a call is a refusal of it, by mpicoll or by a device. One that has come through
    the program's code is not: a signal's handler has made a call that was refused, and the other ranks go on."""
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(e.__traceback__)]
    return isinstance(e, StateError) and not any(map(is_program, frames[:-1]))


def _frames() -> list[FrameType]:
    """The frames of mpicoll's that are around the caller. A plan holds addresses: these hold the arrays."""
    found = []
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__package__") or "").startswith("mpicoll"):
        found.append(frame)
        frame = frame.f_back
    return found


def _unreceived(fabric: weakref.ref[Fabric], tells_kinds: bool, looks: bool) -> Sequence[Envelope]:
    """The messages that have come and that no receive has asked for, with the program's tags. Who watches the
    communicator must not keep it: a program may drop it."""
    there = fabric()
    found = there.messages.unreceived(looks) if there is not None else ()
    return [each._replace(tag=kinds.of_program(each.tag)) for each in found] if tells_kinds else found


watched.under_way.append(unfinished.has_messages)
lifecycle.add(lifecycle.Hook.NAME_UNFINISHED, unfinished.tell)
lifecycle.add(lifecycle.Hook.FORGET_BLOCKS, blocks.forget)
lifecycle.add(lifecycle.Hook.FORGET_DEVICES, cuda.made.clear)
lifecycle.add(lifecycle.Hook.FORGET_PEERS, ipc.open_here.clear)
