"""Collectives and messages of Python objects, pickled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar, overload

from mpicoll.calls.arguments import checked_rank
from mpicoll.calls.plan import Plans
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.engine.engine import Engine
from mpicoll.communicator.engine.masked_thread import MAIN, backoff
from mpicoll.communicator.engine.message_calls import EXACT, NO_OBJECT, About, no_object
from mpicoll.communicator.repeated import repeated
from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.supervise.record import Record

T = TypeVar("T")

_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
}


_ALLGATHER, _ALLTOALL = Record("allgather_object"), Record("alltoall_object")
_OF_A_FUNCTION = Record("allreduce_object", "of a function")
_ALLREDUCE = {combine: Record("allreduce_object", op) for op, combine in _OF_TWO.items()}
"""What is recorded of calls that are always the same."""


class Objects(CommunicatorBase):
    """Collectives and messages of Python objects. Ranks may give objects of different types and sizes.

    Objects are pickled. An object that cannot be pickled raises ArgumentError, and nothing is sent then."""

    def __init__(self, engine: Engine) -> None:
        self._awaited: Plans[tuple[int | None, About]] = Plans()
        """The messages that were awaited, and the other rank if there is only one: by the operation, that rank and the
        tag."""
        self._roots: Plans[tuple[Record, int]] = Plans()
        """The record and the root of collectives with a root, by the operation and the root."""
        super().__init__(engine)

    def _pickled(self, operation: str, obj: Any) -> bytes:
        """The object as bytes. They are made before the call begins, and read after it has ended. So whatever an
        object does meanwhile, all ranks make the same calls."""
        if self._engine.closed:
            self._engine.check_open(operation)
        try:
            data = self._engine.fabric.dumps(obj)
            return data if type(data) is bytes else bytes(data)
        except Exception as e:
            raise ArgumentError(operation, "obj", "an object that can be pickled", str(e)) from e

    def _rooted(self, operation: str, root: int) -> tuple[Record, int]:
        """What is recorded of a collective with a root, and the root."""
        found = self._roots.get((operation, root)) if type(root) is int else None  # True equals 1, and is no rank
        if found is None:
            root = checked_rank(root, self.size, operation, "root")
            self._roots.keep((operation, root), found := (Record(operation, f"root {root}", root=root), root))
        return found

    def _message(self, peer: int | None, about: About, move: Callable[..., Any], *data: bytes) -> Any:
        """Send or receive bytes that were pickled."""
        pending = about.pending
        if self._engine.closed:
            self._engine.check_open(pending.operation)
        under_way = self._engine.under_way
        begun = pending, monotonic()
        under_way.begin_message(pending)
        under_way.waits.append(begun)
        seconds = under_way.timeout
        try:
            held = get_ident() != MAIN and under_way.by_mpi and self._engine.fabric.messages.by_library
            its = backoff(seconds or float("inf"), about.meanwhile) if seconds is not None or held else None
            return move(*data, peer, about.tag, its)
        except TimeoutError as e:
            why = TimeoutError(f"{pending.operation}: {pending.missing} within {seconds:g} s")
            self._engine.end_midway(pending.operation, why)
            raise why from e
        except self._engine.failure as e:
            self._engine.end_midway(pending.operation, e)
            raise self._engine.error(pending.operation, e) from e
        finally:
            under_way.waits.remove(begun)

    @overload
    def bcast_object(self, obj: None = None, root: int = ...) -> Any: ...

    @overload
    def bcast_object(self, obj: T, root: int = ...) -> T: ...

    def bcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """Send the root's ``obj`` to all ranks. Every rank gets it. The ``obj`` of the other ranks is not used."""
        record, root = self._rooted("bcast_object", root)
        given = self._pickled("bcast_object", obj) if self.rank == root else None
        moved = self._engine.together(record, self._engine.fabric.objects.bcast, given, root)
        return self._engine.fabric.loads(moved)

    def gather_object(self, obj: T, root: int = 0) -> list[T] | None:
        """Gather every rank's ``obj``. The root gets the list of them, in rank order; the other ranks get None."""
        record, root = self._rooted("gather_object", root)
        given = self._pickled("gather_object", obj)
        moved = self._engine.together(record, self._engine.fabric.objects.gather, given, root)
        return None if moved is None else [*map(self._engine.fabric.loads, moved)]

    def allgather_object(self, obj: T) -> list[T]:
        """Gather every rank's ``obj``. Every rank gets the list of them, in rank order."""
        given = self._pickled("allgather_object", obj)
        moved = self._engine.together(_ALLGATHER, self._engine.fabric.objects.allgather, given)
        return [*map(self._engine.fabric.loads, moved)]

    @overload
    def scatter_object(self, objs: None = None, root: int = ...) -> Any: ...

    @overload
    def scatter_object(self, objs: Sequence[T], root: int = ...) -> T: ...

    def scatter_object(self, objs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Hand out the root's objects: rank r gets ``objs[r]``.

        ``objs`` is a sequence of one object a rank. It is used at the root alone; other ranks may leave it away."""
        record, root = self._rooted("scatter_object", root)
        given = self._one_each("scatter_object", objs) if self.rank == root else None
        moved = self._engine.together(record, self._engine.fabric.objects.scatter, given, root)
        return self._engine.fabric.loads(moved)

    def alltoall_object(self, objs: Sequence[T]) -> list[T]:
        """Exchange objects: rank r gets the list of every rank's ``objs[r]``, in rank order.

        ``objs`` is a sequence of one object a rank."""
        given = self._one_each("alltoall_object", objs)
        moved = self._engine.together(_ALLTOALL, self._engine.fabric.objects.alltoall, given)
        return [*map(self._engine.fabric.loads, moved)]

    def allreduce_object(self, obj: T, op: str | Callable[[T, T], T] = "sum") -> T:
        """Reduce every rank's ``obj``, in rank order. Every rank gets the result.

        ``op`` is a function of two objects (such as ``MPI.MAXLOC``), or one of ``sum, prod, min, max, band, bor,
        bxor``, which stand for Python's operators and functions."""
        combine = _OF_TWO.get(op) if isinstance(op, str) else op
        if not callable(combine):
            expected = f"a function of two objects, or one of {', '.join(_OF_TWO)}"
            raise ArgumentError("allreduce_object", "op", expected, repr(op))
        record = next((_ALLREDUCE[each] for each in _ALLREDUCE if each is combine), _OF_A_FUNCTION)
        given = self._pickled("allreduce_object", obj)
        moved = self._engine.together(record, self._engine.fabric.objects.allgather, given, record.description)
        result: T = reduce(combine, map(self._engine.fabric.loads, moved))
        return result

    @repeated
    def send_object(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send ``obj`` to the rank ``dest``, which receives it with :meth:`recv_object`."""
        awaited = self._of("send_object", dest, tag)
        self._message(*awaited, self._engine.fabric.messages.send_object, self._pickled("send_object", obj))

    @repeated
    def recv_object(self, source: int | None = None, tag: int | None = 0) -> Any:
        """Receive an object from the rank ``source``, or from any rank if that is None, and return it. If ``tag`` is
        None, it takes a message of any tag."""
        awaited = self._of("recv_object", source, tag)
        data = self._message(*awaited, self._engine.fabric.messages.recv_object)
        try:
            return self._engine.fabric.loads(data)
        except NO_OBJECT as e:
            raise no_object(tag, e) from e

    def _of(self, operation: str, peer: int | None, tag: int | None) -> tuple[int | None, About]:
        """The other rank, if there is one, and what there is to know of a message before it is sent or has come."""
        exact = type(tag) in EXACT and type(peer) in EXACT
        found = self._awaited.get((operation, peer, tag)) if exact else None
        if found is None:
            engine, receives = self._engine, operation == "recv_object"
            of, which = engine.origin(operation, peer, tag) if receives else (peer, engine.checked_tag(operation, tag))
            if of is not None or not receives:  # an object cannot come from nobody, or go there
                of = checked_rank(of, self.size, operation, "source" if receives else "dest")
            about = engine.about(operation, of, which, receives)
            found = of, about
            if exact:
                self._awaited.keep((operation, peer, tag), found)
                convert = engine.fabric.loads if receives else engine.fabric.dumps
                made = engine.fabric.messages.of_objects(receives, of, about.tag, convert)
                if made is not None and engine.calls is not None and engine.under_way.timeout is None:
                    numbers = (None, None, peer, tag) if receives else (peer, tag, None, None)
                    engine.calls.keep_object(operation, numbers, made, about.pending)
        return found

    def _one_each(self, operation: str, objs: Any) -> list[bytes]:
        """Each rank's object, pickled."""
        if not isinstance(objs, Sequence) or len(objs) != self.size:
            given = f"{len(objs)}" if isinstance(objs, Sequence) else repr(objs)
            raise ArgumentError(operation, "objs", f"a sequence of {self.size} objects, one for each rank", given)
        return [self._pickled(operation, obj) for obj in objs]
