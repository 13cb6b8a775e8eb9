"""Calls that are bound once and made many times."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from mpicoll.algorithms.collectives import COLLECTIVES, METHODS, input_of
from mpicoll.arrays.buffers import exported
from mpicoll.calls import results
from mpicoll.communicator.collectives import Collectives
from mpicoll.communicator.point_to_point import PointToPoint
from mpicoll.errors import ArgumentError

_PEERS = {"send": "dest", "recv": "source", "isend": "dest", "irecv": "source", "sendrecv": "dest"}
"""The name of the argument that says the peer, by the kind of message."""


class Persistent(Collectives, PointToPoint):
    """Calls of the Communicator that a program makes again and again."""

    def bind(self, operation: str, /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Bind a call to its arrays: ``call = comm.bind("allreduce", x, out=x)``. Each ``call()`` then makes it.

        ``operation`` is the name of a collective, or of a message: ``send``, ``recv``, ``isend``, ``irecv`` or
        ``sendrecv``. The other arguments are those of its method. They are checked now. ``call()`` reads and writes the
        arrays as they are at that time, and returns what the method returns: without ``out``, that is one array for all
        calls, or a new one each time where ``x`` is an array of JAX or another library. It keeps the arrays, which must
        stay where they are. All ranks bind the same collectives, and binding moves no data."""
        uneven = operation.removesuffix("v") if isinstance(operation, str) else ""
        known = uneven in COLLECTIVES and hasattr(Collectives, operation)
        if not known and operation not in [*_PEERS]:
            expected = f"a collective, as 'allreduce', or one of {', '.join(_PEERS)}"
            raise ArgumentError("bind", "operation", expected, repr(operation))
        try:
            bound = signature(getattr(self, operation)).bind(*args, **kwargs)
        except TypeError as e:
            raise ArgumentError("bind", "args", f"the arguments of {operation}", str(e)) from None
        bound.apply_defaults()
        return (self._bound_call if known else self._bound_message)(operation, bound.arguments)

    def _bound_message(self, operation: str, given: dict[str, Any]) -> Callable[[], Any]:
        engine, x = self._engine, given["x"]
        if operation == "sendrecv":
            out = given["out"]
            sent = exported(x)
            came = sent if out is x else exported(out)
            message, arrays, result = engine.both(**{**given, "x": sent, "out": came}), (sent, came), out
        else:
            peer, receives = given[_PEERS[operation]], operation.endswith("recv")
            message, arrays = engine.message(operation, x, peer, given["tag"], receives), x
            result = x if operation == "recv" else None
        execute: Callable[[Any, Any], Any] = engine.start if operation.startswith("i") else engine.transfer

        def call() -> Any:
            if engine.closed:
                engine.check_open(operation)
            request = execute(message, arrays)  # a bound message holds addresses: this function holds the arrays
            return result if request is None else request

        return call

    def _bound_call(self, operation: str, given: dict[str, Any]) -> Callable[[], Any]:
        table, _ = METHODS[operation]
        x, out, root = given.get(input_of(operation)), given.get("out"), given.get("root", 0)
        counts = given.get("counts")
        sent, received = (counts, None) if table.scatters else (None, counts)
        sent, received = given.get("sendcounts", sent), given.get("recvcounts", received)
        out, result, in_kind = results.ends(operation, x, out, self.rank, self.size, root, sent, received)
        there, engine = None if out is x else out, self._engine
        plan = engine.plan(operation, x, there, given.get("op"), root, given["algorithm"], sent, received)
        execute, kept = engine.execute, (x, out)

        def call() -> Any:
            execute(plan, operation)
            return results.in_kind(x, result, copied=True) if in_kind else result

        call.__dict__["arrays"] = kept  # the plan holds addresses
        return call
