"""Collectives and messages of Python objects, pickled."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from mpicoll.call import checked_rank
from mpicoll.errors import ArgumentError
from mpicoll.fabrics import Fabric

__all__ = ["Objects"]

_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
}


@contextmanager
def _pickling(operation: str) -> Iterator[None]:
    """What pickling raises, before anything is sent, as an ArgumentError."""
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise ArgumentError(operation, "obj", "an object that can be pickled", str(e)) from e


class Objects:
    """The object half of the Communicator. Objects may differ in type and size between ranks."""

    rank: int
    size: int
    _fabric: Fabric

    def _check_open(self, operation: str) -> None:
        raise AssertionError("the Communicator defines it")

    def _check_tag(self, operation: str, tag: Any) -> None:
        raise AssertionError("the Communicator defines it")

    def bcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """The root's object, on every rank."""
        self._check_open("bcast_object")
        with _pickling("bcast_object"):
            return self._fabric.bcast(obj, checked_rank(root, self.size, "bcast_object", "root"))

    def gather_object(self, obj: Any, root: int = 0) -> list[Any] | None:
        """At the root, the list of all ranks' objects; None elsewhere."""
        self._check_open("gather_object")
        with _pickling("gather_object"):
            return self._fabric.gather(obj, checked_rank(root, self.size, "gather_object", "root"))

    def allgather_object(self, obj: Any) -> list[Any]:
        """The list of all ranks' objects, on every rank."""
        self._check_open("allgather_object")
        with _pickling("allgather_object"):
            return self._fabric.allgather(obj)

    def scatter_object(self, objs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Rank r gets the root's ``objs[r]``; ``objs`` is used at the root only."""
        self._check_open("scatter_object")
        root = checked_rank(root, self.size, "scatter_object", "root")
        with _pickling("scatter_object"):
            return self._fabric.scatter(self._one_each("scatter_object", objs) if self.rank == root else None, root)

    def alltoall_object(self, objs: Sequence[Any]) -> list[Any]:
        """The list of all ranks' ``objs[rank]``."""
        self._check_open("alltoall_object")
        with _pickling("alltoall_object"):
            return self._fabric.alltoall(self._one_each("alltoall_object", objs))

    def allreduce_object(self, obj: Any, op: str | Callable[[Any, Any], Any] = "sum") -> Any:
        """All ranks' objects combined in rank order, on every rank. ``op`` is a name or a function of two objects."""
        combine = _OF_TWO.get(op) if isinstance(op, str) else op
        if not callable(combine):
            expected = f"a function of two objects, or one of {', '.join(_OF_TWO)}"
            raise ArgumentError("allreduce_object", "op", expected, repr(op))
        return reduce(combine, self.allgather_object(obj))

    def send_object(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send the object; ``recv_object`` receives it."""
        self._check_open("send_object")
        self._check_tag("send_object", tag)
        with _pickling("send_object"):
            self._fabric.send(obj, checked_rank(dest, self.size, "send_object", "dest"), tag)

    def recv_object(self, source: int | None = None, tag: int = 0) -> Any:
        """The object that ``source`` sent, or whoever sent one if None."""
        self._check_open("recv_object")
        self._check_tag("recv_object", tag)
        of = None if source is None else checked_rank(source, self.size, "recv_object", "source")
        return self._fabric.recv(of, tag)

    def _one_each(self, operation: str, objs: Any) -> Sequence[Any]:
        if not isinstance(objs, Sequence) or len(objs) != self.size:
            given = f"{len(objs)}" if isinstance(objs, Sequence) else repr(objs)
            raise ArgumentError(operation, "objs", f"a sequence of {self.size} objects, one a rank", given)
        return objs
