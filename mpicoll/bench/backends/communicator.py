"""mpicoll at the array level: a Communicator on NumPy arrays, or on torch tensors for what NumPy arrays cannot be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from mpicoll import Communicator
from mpicoll.bench.backends import Unavailable
from mpicoll.bench.cases.memory import Buffers
from mpicoll.bench.session import Session
from mpicoll.calls import select
from mpicoll.calls.choice import SHARED


def open_shared(session: Session) -> ArrayLevel:
    """On buffers in memory that the ranks share."""
    if session.on_gpu:
        raise Unavailable("arrays in shared memory are not on a GPU")
    opened = ArrayLevel(session)
    new = partial(opened.comm.empty, dtype=np.uint8)
    x = new(1 << 20)
    opened.comm.allreduce(x, out=x)
    if opened.route() != SHARED:
        opened.close()
        raise Unavailable("the ranks cannot share arrays")
    opened.new = new
    return opened


class ArrayLevel:
    """A Communicator's collectives, by one algorithm or by the one that mpicoll chooses."""

    new: Callable[[int], Any] | None = None

    def __init__(self, session: Session, algorithm: str | None = None) -> None:
        self.comm = Communicator(session.world)
        self._algorithm = algorithm
        self._on_gpu = session.on_gpu

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        case = buffers.case
        on_host = select.device_route(self._algorithm)[1] if self._on_gpu else self._algorithm
        if on_host and on_host not in select.names(case.name):
            raise Unavailable(f"{case.name} has no algorithm named {self._algorithm}")
        tensors = self._on_gpu or case.dtype.storage is not None  # then NumPy does not have the dtype
        if tensors and find_spec("torch") is None:
            raise Unavailable(f"{case.dtype} needs torch, which is not installed")
        x, out = buffers.torch() if tensors else buffers.numpy()
        if not case.collective.moves:
            return partial(self.comm.barrier, algorithm=self._algorithm) if self._algorithm else self.comm.barrier
        # As a user writes it: arguments that have their default value are not passed.
        named: dict[str, Any] = {}
        if case.collective.reduces and case.op != "sum":
            named["op"] = case.op
        if case.collective.rooted and case.root:
            named["root"] = case.root
        if case.in_place and case.collective.gives == case.collective.gets:
            if case.collective.root != "gives":  # a bcast has one array, and is always in place
                named["out"] = x
        elif out is not None:
            named["out"] = out
        if self._algorithm:
            named["algorithm"] = self._algorithm
        return partial(getattr(self.comm, case.name), x, **named)

    def route(self) -> str:
        return self.comm.last_route

    def close(self) -> None:
        self.comm.free()
