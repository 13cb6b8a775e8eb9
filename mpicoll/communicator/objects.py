"""Collectives and messages of Python objects, pickled."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from mpicoll.calls.arguments import checked_rank
from mpicoll.communicator.base import Base
from mpicoll.errors import ArgumentError, MessageError

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


class Objects(Base):
    """The object half of the Communicator. Objects may differ in type and size between ranks."""

    @contextmanager
    def _moving(self, operation: str, words: str = "") -> Iterator[None]:
        """What pickling raises, before anything is sent, becomes an ArgumentError; what MPI reports, a MessageError.

        A collective says in ``words`` what all its ranks must say alike."""
        if words:
            self.agree(operation, words)
        else:
            self.check_open(operation)
        try:
            yield
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise ArgumentError(operation, "obj", "an object that can be pickled", str(e)) from e
        except self._failure as e:
            self._end_midway(operation, e)
            raise MessageError(f"{operation}: the MPI library reports: {e}") from e

    def bcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """The root's object, on every rank."""
        root = checked_rank(root, self.size, "bcast_object", "root")
        with self._moving("bcast_object", f"bcast_object root {root}"):
            return self._fabric.bcast(obj, root)

    def gather_object(self, obj: Any, root: int = 0) -> list[Any] | None:
        """At the root, the list of all ranks' objects; None elsewhere."""
        root = checked_rank(root, self.size, "gather_object", "root")
        with self._moving("gather_object", f"gather_object root {root}"):
            return self._fabric.gather(obj, root)

    def allgather_object(self, obj: Any) -> list[Any]:
        """The list of all ranks' objects, on every rank."""
        with self._moving("allgather_object", "allgather_object"):
            return self._fabric.allgather(obj)

    def scatter_object(self, objs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Rank r gets the root's ``objs[r]``; ``objs`` is used at the root only."""
        root = checked_rank(root, self.size, "scatter_object", "root")
        with self._moving("scatter_object", f"scatter_object root {root}"):
            return self._fabric.scatter(self._one_each("scatter_object", objs) if self.rank == root else None, root)

    def alltoall_object(self, objs: Sequence[Any]) -> list[Any]:
        """The list of all ranks' ``objs[rank]``."""
        with self._moving("alltoall_object", "alltoall_object"):
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
        with self._moving("send_object"):
            self.check_tag("send_object", tag)
            self._fabric.send(obj, checked_rank(dest, self.size, "send_object", "dest"), tag)

    def recv_object(self, source: int | None = None, tag: int = 0) -> Any:
        """The object that ``source`` sent, or whoever sent one if None."""
        self.check_tag("recv_object", tag)
        of = None if source is None else checked_rank(source, self.size, "recv_object", "source")
        with self._moving("recv_object"):
            return self._fabric.recv(of, tag)

    def _one_each(self, operation: str, objs: Any) -> Sequence[Any]:
        if not isinstance(objs, Sequence) or len(objs) != self.size:
            given = f"{len(objs)}" if isinstance(objs, Sequence) else repr(objs)
            raise ArgumentError(operation, "objs", f"a sequence of {self.size} objects, one a rank", given)
        return objs
