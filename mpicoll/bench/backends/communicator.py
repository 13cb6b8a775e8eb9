"""mpicoll at the array level: the Communicator on NumPy arrays, or on torch tensors where NumPy has no such array."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from mpicoll import Communicator
from mpicoll.bench.backends import Session, Unavailable
from mpicoll.bench.memory import Slot
from mpicoll.bench.rules import Case
from mpicoll.calls import select
from mpicoll.machine.gpu import takes_device_memory

__all__ = ["chosen", "open"]


def chosen(case: Case, traits: select.Traits, algorithm: str | None = None) -> str:
    """The algorithm that mpicoll takes for a case, and whether GPU memory goes through the host."""
    found = select.select(case.name, case.reduction, case.bytes, traits, case.root, algorithm)
    staged = case.device != "cpu" and not takes_device_memory()
    return found + ", through host memory" * staged


def open(session: Session, algorithm: str | None) -> OfArrays:
    return OfArrays(session, algorithm)


class OfArrays:
    """One algorithm of mpicoll's, or the one it chooses."""

    def __init__(self, session: Session, algorithm: str | None) -> None:
        self._comm = Communicator(session.world)
        self._algorithm = algorithm
        self._on_gpu = session.on_gpu

    def bind(self, slot: Slot) -> Callable[[], object]:
        case = slot.case
        if self._algorithm and self._algorithm not in select.names(case.name):
            raise Unavailable(f"{case.name} has no algorithm named {self._algorithm}")
        tensors = self._on_gpu or case.dtype.storage is not None  # then NumPy does not have the dtype
        if tensors and find_spec("torch") is None:
            raise Unavailable(f"{case.dtype} needs torch, which is not installed")
        x, out = slot.torch() if tensors else slot.numpy()
        if not case.rule.sized:
            return partial(self._comm.barrier, algorithm=self._algorithm) if self._algorithm else self._comm.barrier
        # As a user writes it: what is left at its default is not passed.
        named: dict[str, Any] = {}
        if case.rule.collective.reduces and case.op != "sum":
            named["op"] = case.op
        if case.rule.collective.rooted and case.root:
            named["root"] = case.root
        table = case.rule.collective
        if case.in_place and table.gives == table.gets:
            if table.root != "gives":  # a bcast has one array, and is always in place
                named["out"] = x
        elif out is not None:
            named["out"] = out
        if self._algorithm:
            named["algorithm"] = self._algorithm
        return partial(getattr(self._comm, case.name), x, **named)

    def route(self, case: Case) -> str:
        return chosen(case, self._comm.traits, self._algorithm)

    def close(self) -> None:
        self._comm.free()
