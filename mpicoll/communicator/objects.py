"""Collectives and messages of Python objects, pickled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar, overload

from mpicoll.calls.arguments import checked_rank
from mpicoll.calls.record import Pending
from mpicoll.communicator.base import Base
from mpicoll.errors import ArgumentError, TimeoutError

__all__ = ["Objects"]

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


class Objects(Base):
    """Collectives and messages of Python objects. Ranks may give objects of different types and sizes.

    Objects are pickled. An object that cannot be pickled raises ArgumentError, and nothing is sent then.
    """

    def _pickled(self, operation: str, obj: Any) -> bytes:
        """The object as bytes. They are made before the call begins, and read after it has ended. So whatever an
        object does meanwhile, all ranks make the same calls."""
        self.check_open(operation)
        try:
            return self._fabric.dumps(obj)
        except Exception as e:
            raise ArgumentError(operation, "obj", "an object that can be pickled", str(e)) from e

    @contextmanager
    def _collective(self, operation: str, root: int | None = None) -> Iterator[None]:
        """A collective of bytes that were pickled."""
        with self._making(operation, operation if root is None else f"{operation} root {root}"):
            try:
                yield
            except self._failure as e:
                raise self._error(operation, e) from e

    @contextmanager
    def _message(self, operation: str, which: str) -> Iterator[None]:
        """A message of bytes that were pickled."""
        self.check_open(operation)
        try:
            with self._under_way.waiting(Pending.message(operation, which, 1, "object")):
                yield
        except TimeoutError as e:
            self._end_midway(operation, e)
            raise
        except self._failure as e:
            self._end_midway(operation, e)
            raise self._error(operation, e) from e

    @overload
    def bcast_object(self, obj: None = None, root: int = ...) -> Any: ...

    @overload
    def bcast_object(self, obj: T, root: int = ...) -> T: ...

    def bcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """Send the root's ``obj`` to all ranks. Every rank gets it. The ``obj`` of the other ranks is not used."""
        root = checked_rank(root, self.size, "bcast_object", "root")
        given = self._pickled("bcast_object", obj) if self.rank == root else None
        with self._collective("bcast_object", root):
            moved = self._fabric.bcast(given, root)
        return self._fabric.loads(moved)

    def gather_object(self, obj: T, root: int = 0) -> list[T] | None:
        """Gather every rank's ``obj``. The root gets the list of them, in rank order; the other ranks get None."""
        root = checked_rank(root, self.size, "gather_object", "root")
        given = self._pickled("gather_object", obj)
        with self._collective("gather_object", root):
            moved = self._fabric.gather(given, root)
        return None if moved is None else [*map(self._fabric.loads, moved)]

    def allgather_object(self, obj: T) -> list[T]:
        """Gather every rank's ``obj``. Every rank gets the list of them, in rank order."""
        given = self._pickled("allgather_object", obj)
        with self._collective("allgather_object"):
            moved = self._fabric.allgather(given)
        return [*map(self._fabric.loads, moved)]

    @overload
    def scatter_object(self, objs: None = None, root: int = ...) -> Any: ...

    @overload
    def scatter_object(self, objs: Sequence[T], root: int = ...) -> T: ...

    def scatter_object(self, objs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Hand out the root's objects: rank r gets ``objs[r]``.

        ``objs`` is a sequence of one object a rank. It is used at the root alone; other ranks may leave it away.
        """
        root = checked_rank(root, self.size, "scatter_object", "root")
        given = self._one_each("scatter_object", objs) if self.rank == root else None
        with self._collective("scatter_object", root):
            moved = self._fabric.scatter(given, root)
        return self._fabric.loads(moved)

    def alltoall_object(self, objs: Sequence[T]) -> list[T]:
        """Exchange objects: rank r gets the list of every rank's ``objs[r]``, in rank order.

        ``objs`` is a sequence of one object a rank.
        """
        given = self._one_each("alltoall_object", objs)
        with self._collective("alltoall_object"):
            moved = self._fabric.alltoall(given)
        return [*map(self._fabric.loads, moved)]

    def allreduce_object(self, obj: T, op: str | Callable[[T, T], T] = "sum") -> T:
        """Reduce every rank's ``obj``, in rank order. Every rank gets the result.

        ``op`` is a function of two objects (such as ``MPI.MAXLOC``), or one of ``sum, prod, min, max, band, bor,
        bxor``, which stand for Python's operators and functions.
        """
        combine = _OF_TWO.get(op) if isinstance(op, str) else op
        if not callable(combine):
            expected = f"a function of two objects, or one of {', '.join(_OF_TWO)}"
            raise ArgumentError("allreduce_object", "op", expected, repr(op))
        return reduce(combine, self.allgather_object(obj))

    def send_object(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send ``obj`` to the rank ``dest``, which receives it with :meth:`recv_object`."""
        self.check_tag("send_object", tag)
        to = checked_rank(dest, self.size, "send_object", "dest")
        given = self._pickled("send_object", obj)
        with self._message("send_object", f"was taken by rank {to} (tag {tag})"):
            self._fabric.send(given, to, tag, self._under_way.timeout)

    def recv_object(self, source: int | None = None, tag: int = 0) -> Any:
        """Receive an object from the rank ``source``, or from any rank if that is None, and return it."""
        self.check_tag("recv_object", tag)
        of = None if source is None else checked_rank(source, self.size, "recv_object", "source")
        whom = "any rank" if of is None else f"rank {of}"
        with self._message("recv_object", f"came from {whom} (tag {tag})"):
            moved = self._fabric.recv(of, tag, self._under_way.timeout)
        return self._fabric.loads(moved)

    def _one_each(self, operation: str, objs: Any) -> list[bytes]:
        """Each rank's object, pickled."""
        if not isinstance(objs, Sequence) or len(objs) != self.size:
            given = f"{len(objs)}" if isinstance(objs, Sequence) else repr(objs)
            raise ArgumentError(operation, "objs", f"a sequence of {self.size} objects, one for each rank", given)
        return [self._pickled(operation, obj) for obj in objs]
