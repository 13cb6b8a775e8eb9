"""How a call is carried out: one of three ways."""

from __future__ import annotations

from dataclasses import dataclass

from mpicoll.schedule import Schedule

__all__ = ["EXCHANGE", "NATIVE", "Choice", "Exchange", "Native"]


@dataclass(frozen=True, slots=True)
class Native:
    """The MPI library's own collective."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reduction that MPI cannot do or gets wrong: all values of an element meet on one rank, which reduces them."""


Choice = Native | Exchange | Schedule
"""A schedule is this rank's part in an algorithm."""

NATIVE, EXCHANGE = "native", "exchange"
"""What ``algorithm=`` calls the two that are no schedules."""
