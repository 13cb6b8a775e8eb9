"""Collectives and messages of Python objects, pickled."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar, overload

from mpicoll.calls.arguments import checked_rank
from mpicoll.communicator.base import Base
from mpicoll.errors import ArgumentError, MpicollError, TimeoutError

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

    @contextmanager
    def _moving(self, operation: str) -> Iterator[None]:
        """What pickling raises, before anything is sent, becomes an ArgumentError; what MPI reports, a MessageError."""
        self.check_open(operation)
        try:
            yield
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise ArgumentError(operation, "obj", "an object that can be pickled", str(e)) from e
        except TimeoutError as e:
            self._end_midway(operation, e)
            raise
        except self._failure as e:
            self._end_midway(operation, e)
            raise self._error(operation, e) from e

    @contextmanager
    def _collective(self, operation: str, given: Any, root: int | None = None) -> Iterator[None]:
        """A collective in which this rank gives an object. Where ranks agree on it first, the object is pickled before:
        a rank that cannot must not leave the others in the call."""
        words = operation if root is None else f"{operation} root {root}"
        if self._agreement is not None:
            _check_pickles(operation, given)
        unread: Exception | None = None
        with self._making(operation, words):
            try:
                yield
            except self._failure as e:
                raise self._error(operation, e) from e
            except MpicollError:
                raise
            except Exception as e:
                _check_pickles(operation, given)  # if this passes, all has moved
                unread = e
        if unread is not None:
            raise unread

    @overload
    def bcast_object(self, obj: None = None, root: int = ...) -> Any: ...

    @overload
    def bcast_object(self, obj: T, root: int = ...) -> T: ...

    def bcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """Send the root's ``obj`` to all ranks. Every rank gets it. The ``obj`` of the other ranks is not used."""
        root = checked_rank(root, self.size, "bcast_object", "root")
        with self._collective("bcast_object", obj if self.rank == root else None, root):
            return self._fabric.bcast(obj, root)

    def gather_object(self, obj: T, root: int = 0) -> list[T] | None:
        """Gather every rank's ``obj``. The root gets the list of them, in rank order; the other ranks get None."""
        root = checked_rank(root, self.size, "gather_object", "root")
        with self._collective("gather_object", obj, root):
            return self._fabric.gather(obj, root)

    def allgather_object(self, obj: T) -> list[T]:
        """Gather every rank's ``obj``. Every rank gets the list of them, in rank order."""
        with self._collective("allgather_object", obj):
            return self._fabric.allgather(obj)

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
        with self._collective("scatter_object", given, root):
            return self._fabric.scatter(given, root)

    def alltoall_object(self, objs: Sequence[T]) -> list[T]:
        """Exchange objects: rank r gets the list of every rank's ``objs[r]``, in rank order.

        ``objs`` is a sequence of one object a rank.
        """
        given = self._one_each("alltoall_object", objs)
        with self._collective("alltoall_object", given):
            return self._fabric.alltoall(given)

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
        under_way = self._under_way
        with self._moving("send_object"), under_way.waiting("send_object", f"was taken by rank {to} (tag {tag})"):
            self._fabric.send(obj, to, tag, under_way.timeout)

    def recv_object(self, source: int | None = None, tag: int = 0) -> Any:
        """Receive an object from the rank ``source``, or from any rank if that is None, and return it."""
        self.check_tag("recv_object", tag)
        of = None if source is None else checked_rank(source, self.size, "recv_object", "source")
        whom = "any rank" if of is None else f"rank {of}"
        under_way = self._under_way
        with self._moving("recv_object"), under_way.waiting("recv_object", f"came from {whom} (tag {tag})"):
            return self._fabric.recv(of, tag, under_way.timeout)

    def _one_each(self, operation: str, objs: Any) -> Sequence[Any]:
        if not isinstance(objs, Sequence) or len(objs) != self.size:
            given = f"{len(objs)}" if isinstance(objs, Sequence) else repr(objs)
            raise ArgumentError(operation, "objs", f"a sequence of {self.size} objects, one for each rank", given)
        return objs


def _check_pickles(operation: str, given: Any) -> None:
    """Raise ArgumentError if this cannot be pickled. MPI pickles before it sends, so that nothing was sent then."""
    try:
        pickle.dumps(given)
    except Exception as e:
        raise ArgumentError(operation, "obj", "an object that can be pickled", str(e)) from e
