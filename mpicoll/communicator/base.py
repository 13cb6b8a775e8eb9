"""What every call of a Communicator goes through: its plan, carrying it out, and what closes the communicator."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.arrays.dtypes import Op, OpName, name_of
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls.arguments import checked_int, checked_rank
from mpicoll.calls.call import Call, checked
from mpicoll.calls.choice import AlgorithmName, Choice
from mpicoll.calls.plan import NOT_FOUND, Bound, Plans, Workspace, key_by
from mpicoll.calls.record import Record, record_of
from mpicoll.calls.rules import NAN, checked_check, checked_timeout
from mpicoll.calls.select import Traits, choice, select
from mpicoll.communicator import kinds, staging
from mpicoll.communicator.requests import Finish, Message, Request, UnderWay
from mpicoll.errors import MessageError, MpicollError, RankLost, StateError
from mpicoll.fabrics.device_calls import DeviceCalls
from mpicoll.fabrics.fabric import Fabric
from mpicoll.fabrics.lookup import fabric_of
from mpicoll.guard import nans
from mpicoll.guard.agreement import Agreement, same_check
from mpicoll.guard.elastic import Cut
from mpicoll.guard.files.traced import recorder_for
from mpicoll.guard.recorder import Queued
from mpicoll.guard.watch import watcher
from mpicoll.launch import lifetime

if TYPE_CHECKING:
    from mpi4py import MPI

    # Editors complete the names of a Literal, and ``str`` takes the names that a program has in a variable.
    OpLike = OpName | str | Op | MPI.Op
    """A reduction: its name, an Op, or one of mpi4py's operations."""
    AlgorithmLike = AlgorithmName | str
    """The name of an algorithm: a built-in one, one that a program has registered, or a route and a name."""

__all__ = ["Base"]


class Base:
    """A fabric, the plans of the calls that were made over it, and whether it can still be used."""

    rank: int
    """This process's rank in the communicator, 0 to size - 1."""
    size: int
    """The number of ranks in the communicator."""
    closed: str
    """Why the communicator cannot be used any more. Empty while it can."""
    queued: deque[Queued]
    """Calls that wait for another thread to make them, for those who ask what this process does."""
    lost = False
    """Whether it is closed because ranks were lost: those that are left can ``shrink`` it."""

    def __init__(
        self, comm: MPI.Comm | Fabric | None = None, check: str | None = None, timeout: float | None = None
    ) -> None:
        if check is not None:
            checked_check(check, "Communicator", "check")
        if timeout is not None:
            checked_timeout(timeout, "Communicator", "timeout")
        self._fabric = fabric = fabric_of(comm)
        self._failure, self._address, self._key = fabric.failure, fabric.address, key_by(fabric.address)
        self._plans: Plans[Bound] = Plans()
        self._bound_messages: Plans[Message] = Plans()
        self._planned, self._messages_of = self._plans.get, self._bound_messages.get
        self._workspace = Workspace()
        self._tells_kinds, self._most_tag = False, fabric.most_tag
        self._under_way = UnderWay(fabric.failure, fabric.rank)
        self.rank, self.size, self.closed = fabric.rank, fabric.size, ""
        self._traits = Traits(fabric.size, fabric.one_node, fabric.library, fabric.shares, fabric.rules)
        rules = fabric.rules
        self._recorder = recorder_for(rules.trace)
        self._under_way.begun, self.queued = self._recorder.messages, self._recorder.queued
        self._choose = partial(_choose, fabric, self._traits)
        self._device_calls = DeviceCalls(fabric, self._choose, self._workspace)
        self._timeout = rules.timeout if timeout is None else float(timeout)
        check = check or rules.check
        self._refuses_nans, check = check.endswith(NAN), check.removesuffix(NAN)
        self._cut = Cut(fabric.elastic) if fabric.elastic is not None else None
        if self._cut is not None:
            self._under_way.loss = self._cut.why
        lifetime.watch(self)
        self._watched = None
        try:
            if not isinstance(comm, Fabric):  # else it was made of another communicator, and has its check
                same_check(fabric, check)
            self._agreement = self._agreement_of(check)
            if check != "off" and self.size > 1:
                waits, agrees = self._under_way.waits, self._agreement is not None
                self._watched = watcher.watch(fabric, self._recorder, waits, self._timeout, agrees, self._cut)
        except self._failure as e:
            raise self._error("Communicator", e) from e

    def _agreement_of(self, check: str) -> Agreement | None:
        """How ranks agree on calls; None where they do not."""
        if check != "full" or self.size == 1:
            return None
        self._limit_messages()
        if self._fabric.library:  # threads compare the dtypes themselves
            self._tells_kinds, self._most_tag = True, self._most_tag // kinds.KINDS
        return Agreement(self._fabric, self._timeout)

    @property
    def timeout(self) -> float:
        """The seconds that a collective, or a wait for a message, may take. It can be set."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = checked_timeout(seconds, "Communicator", "timeout")
        if self._watched is not None:
            self._watched.timeout = self._timeout
        if self._agreement is not None:
            self._agreement.timeout = self._timeout
            self._limit_messages()

    def _limit_messages(self) -> None:
        if self._fabric.library:  # threads notice by themselves that no message can come any more
            self._under_way.timeout = self._timeout
            this = weakref.ref(self)  # messages under way may outlive their communicator

            def timed_out(why: str) -> None:
                if (comm := this()) is not None:
                    comm.close(why)

            self._under_way.timed_out = timed_out

    @contextmanager
    def _making(self, operation: str, words: str) -> Iterator[None]:
        """Around a collective that has no plan: it is recorded, and all ranks make it, if they agree on calls."""
        self.check_open(operation)
        recorder, record = self._recorder, Record(words)
        recorder.begin(record)
        if self._agreement is not None:
            try:
                self._agreement.agree(operation, record)
            except BaseException as e:
                _cut_short.append(self._fabric)  # MPI may still write to what it holds
                self._end_midway(operation, e)
                raise
        try:
            yield
        except StateError:
            recorder.under_way = False
            raise  # ranks that are threads: what broke their job is said by every later call
        except BaseException as e:
            self._end_midway(operation, e)
            raise
        recorder.under_way = False

    def check_open(self, operation: str) -> None:
        """Raise StateError, on behalf of ``operation``, if the communicator cannot be used any more."""
        if self.lost and self._cut is not None:
            raise self._cut.loss(operation)
        if self.closed:
            raise StateError(f"{operation}: this communicator cannot be used any more: {self.closed}")

    def hold_to(self, device: str) -> None:
        """Refuse memory of other devices than this one, such as ``cuda:0``, from now on. The host's is taken."""
        self._device_calls.only = device

    def check_tag(self, operation: str, tag: Any) -> None:
        """Raise ArgumentError, on behalf of ``operation``, unless ``tag`` can be the tag of a message."""
        checked_int(tag, 0, self._most_tag, operation, "tag")

    def plan(
        self,
        operation: str,
        x: ArrayLike | None = None,
        out: ArrayLike | None = None,
        op: OpLike | None = None,
        root: int = 0,
        algorithm: str | None = None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> Bound:
        """Check a collective call and bind it to its arrays. :meth:`carry_out` makes it happen, on any thread.

        ``operation`` is the name of a method, and the other arguments are those of the method. ``sendcounts`` are what
        scatterv and reduce_scatterv call ``counts``; ``recvcounts`` are what gatherv and allgatherv call so. Unlike the
        method, an allreduce, reduce, scan or exscan without ``out`` works in place, and all others need ``out``.

        A plan holds the addresses of the arrays, not the arrays. Keep them until it has been carried out. Raises the
        errors of the method.
        """
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, operation)
        at: Any = None
        try:
            here = None if x is None else self._key(x)
            there = None if out is None else self._key(out)
            if (here is not None or x is None) and (there is not None or out is None) and type(root) is int:
                at = (operation, here, there, op, root, algorithm)
                if sendcounts is not None or recvcounts is not None:
                    shapes = np.shape(x), np.shape(out)  # type: ignore[arg-type]  # what has a key has a shape
                    at = (*at, _fixed(sendcounts), _fixed(recvcounts), *shapes)
            plan = self._planned(at)
        except NOT_FOUND:
            at = plan = None
        if plan is None:
            self.check_open(operation)
            call = checked(operation, self.rank, self.size, x, out, op, root, sendcounts, recvcounts)
            record = record_of(call, algorithm, self.size)
            choose = partial(self._choose, record=record)
            run, lasts = staging.bind(
                self._fabric, call, algorithm, record, choose, self._workspace, self._device_calls
            )
            if self._agreement is not None:
                run = self._agreement.before(call, record, run)
            if self._refuses_nans:
                run = nans.before(call, self.rank, self.size, staging.copied_to_host, run)
            plan = Bound(run, record)
            if lasts and at is not None:
                self._plans.keep(at, plan)
        return plan

    def carry_out(self, plan: Bound, operation: str) -> None:
        """Make the call that was bound by :meth:`plan`. ``operation`` is its name in errors.

        What the MPI library reports becomes a MessageError. A call that ends by an exception closes the communicator:
        other ranks may be at other steps of it, or at the next call. That includes an exception of a signal's handler.
        Let handlers set a flag, and raise after the call.
        """
        if self.closed:
            self.check_open(operation)
        recorder = self._recorder
        recorder.begin(plan.record)
        try:
            plan.run()
        except BaseException as e:
            self._break(plan, operation, e)
            raise
        recorder.under_way = False

    def _run(
        self,
        operation: str,
        x: Any,
        out: Any,
        op: OpLike | None,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> None:
        # What plan and carry_out do with a call that was bound before, in line: this is the way of every call.
        plan = None
        if sendcounts is None and recvcounts is None:
            try:
                here: Any  # as self._key has it
                if type(x) is np.ndarray:
                    here = (self._address(x), x.size, x.dtype, x.flags.num)
                else:
                    here = None if x is None else self._key(x) or x
                there: Any
                if type(out) is np.ndarray:
                    there = (self._address(out), out.size, out.dtype, out.flags.num)
                else:
                    there = None if out is None else self._key(out) or out
                plan = self._planned((operation, here, there, op, root, algorithm))
            except NOT_FOUND:
                plan = None
        if plan is None or type(root) is not int:
            plan = self.plan(operation, x, out, op, root, algorithm, sendcounts, recvcounts)
            self.check_open(operation)
        recorder = self._recorder
        recorder.begin(plan.record)
        try:
            plan.run()
        except BaseException as e:
            self._break(plan, operation, e)
            raise
        recorder.under_way = False

    def start(self, message: Message | Callable[[], Request], x: Any) -> Request:
        """Start a message that is bound to ``x``, or a collective that does not block."""
        if not isinstance(message, Message):
            return message()
        try:
            return Request(message, message.transfer.start(), x, self._under_way)
        except self._failure as e:
            raise self._error(message.pending.operation, e) from e

    def _started(self, message: Message, array: object, finish: Finish | None = None) -> Request:
        """A message whose memory is a copy. ``finish`` writes what comes to where it belongs."""
        request = self.start(message, array)
        request._finish = finish
        return request

    def _is_root(self, operation: str, root: Any) -> bool:
        """Whether this rank is the root. Raises ArgumentError for a root that cannot be compared with ranks."""
        return self.rank == (root if type(root) is int else checked_rank(root, self.size, operation, "root"))

    def _break(self, plan: object, operation: str, e: BaseException) -> None:
        """Close the communicator, because the plan has raised ``e``, or whatever else has made a call.

        Python runs a signal's handler when the MPI library's function has returned. If the plan is no more than that
        function, a handler that raises finds the call complete on this rank. The communicator is closed all the same.
        Which plans are so depends on the algorithm, and a program cannot rely on that. It does not get the
        result, with which the other ranks go on.
        """
        # What a collective leaves that a loss has ended may raise anything.
        error = self._error(operation, e) if isinstance(e, self._failure) or self._is_cut(e) else None
        unexpected = error is None and isinstance(e, Exception) and not isinstance(e, MpicollError)
        if self._watched is not None and (unexpected or isinstance(error, MessageError)):
            # Different calls are the likely reason. They may have taken each other's messages, which raises anything.
            # If so, the job ends with a table.
            watcher.compare(self._watched)
        if isinstance(e, StateError):
            # A stream that captures, before anything was sent. Other ranks may have been refused before they began. Or
            # ranks are threads: what broke their job is said by every later call.
            self._recorder.retract()
            return
        _cut_short.append((plan, e.__traceback__, _frames()))
        self._end_midway(operation, e)
        if error is not None:
            raise error from e

    def _is_cut(self, e: BaseException) -> bool:
        elastic = self._fabric.elastic
        return elastic is not None and isinstance(e, Exception) and elastic.is_cut(e)

    def _error(self, operation: str, e: BaseException) -> MpicollError:
        """The error of a call in which the MPI library has reported ``e``."""
        error = self._cut.why(operation, e) if self._cut is not None else None
        if isinstance(error, RankLost):
            self.lost = True
            self.close("ranks were lost")
        return error or MessageError(f"{operation}: the MPI library reports: {e}")

    def _end_midway(self, operation: str, e: BaseException) -> None:
        self.close(f"its {operation} ended midway, so its ranks may be at different calls; make a new one ({e})")

    def close(self, why: str) -> None:
        """Let every later use raise a StateError that says ``why``. Not collective: what MPI holds is not freed."""
        self.closed = why
        self._recorder.close()
        self._plans.clear()
        self._bound_messages.clear()
        self._address, self._key = _nowhere, key_by(_nowhere)  # MPICH ends a process that asks it after its end

    def _made_beside(self, make: Callable[[], Fabric]) -> Callable[[], Base]:
        """A function for another thread: it makes a communicator of the same ranks, with the same checks."""
        raise AssertionError("the Communicator knows how")

    def free(self) -> None:
        """Give back what the fabric holds. Collective."""
        raise AssertionError("the Communicator knows what it has made")

    def abandon(self, why: str) -> None:
        """Close it in a process that may not call MPI, such as one that was forked."""
        _cut_short.append((self._plans, self._bound_messages))
        self._plans, self._bound_messages = Plans(), Plans()
        self._planned, self._messages_of = self._plans.get, self._bound_messages.get
        self._under_way.lost = why
        self.close(why)

    @property
    def traits(self) -> Traits:
        """What the choice of algorithms depends on. ``shares`` may change at the first long call, which finds out
        whether the ranks can share memory."""
        return replace(self._traits, shares=self._fabric.shares)

    @property
    def last_route(self) -> str:
        """What has carried out the last call, as in ``native``, ``ring`` or ``staged:ring``. Empty where no call was
        made, and where a call has one way only, as those of objects."""
        made = self._recorder.calls()
        return made[-1].record.route if made else ""

    @property
    def any_thread(self) -> bool:
        """Whether several threads of a rank may call MPI at once: MPI_THREAD_MULTIPLE."""
        return self._fabric.any_thread


_cut_short: list[object] = []
"""Plans that did not come to their end, with the frames that hold their arrays: MPI may still write to that memory.
Also plans that a forked child has from its parent: a child may not give their requests back."""


def _frames() -> list[FrameType]:
    """The frames of mpicoll's that are around the caller. A plan holds addresses: these hold the arrays."""
    found = []
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__package__") or "").startswith("mpicoll"):
        found.append(frame)
        frame = frame.f_back
    return found


def _choose(fabric: Fabric, traits: Traits, algorithm: str | None, call: Call, record: Record | None = None) -> Choice:
    """How the call is carried out, from what is known of shared memory now. That matters to a long call alone. The
    ``record`` gets its name."""
    shares = fabric.is_long(call) and fabric.shares
    now = traits if traits.shares == shares else replace(traits, shares=shares)
    name = select(call.operation, call.reduction, call.nbytes(fabric.size), now, call.root, algorithm)
    if record is not None:
        record.route = name
    return choice(name, call, fabric.rank, fabric.size)


def _nowhere(array: Any) -> int:
    """In the place of an array's address, where no plan is kept any more."""
    return 0


def _fixed(counts: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if counts is None else tuple(counts)
