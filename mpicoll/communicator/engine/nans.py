"""Looks for NaNs in what a rank gives to a collective, before data moves: ``check_nan``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.routes.node import input_and_output
from mpicoll.supervise.record import Record


class NanError(ArgumentError):
    """A NaN was given. This rank has sent nothing, and others may have made the call."""


def before(rank: int, size: int, copied_to_host: Callable[[Buffer], Buffer], call: Call, record: Record) -> list[Plan]:
    """A look at this rank's input. It raises ArgumentError for the first NaN."""
    given, _ = input_and_output(call, rank, size)
    if given is None or not kernels.has_nans(given.dtype):
        return []
    if given.plain and given.device == "cpu":
        look: Callable[[], Buffer] = partial(given.part, 0, given.count)  # a plan keeps no arrays
    else:
        look = partial(copied_to_host, given)
    return [partial(_check, call.operation, call.input, rank, look)]


def _check(operation: str, argument: str, rank: int, look: Callable[[], Buffer]) -> None:
    at = kernels.first_nan(look())
    if at is not None:
        raise NanError(operation, argument, "no NaN, as the check demands", f"NaN at index {at} on rank {rank}")
