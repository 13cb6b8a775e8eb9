"""The engine of a communicator: the Communicator's methods, torch's groups and other threads make calls with it."""

from __future__ import annotations

from mpicoll.engine.nonblocking import NonBlocking

__all__ = ["Engine"]


class Engine(NonBlocking):
    """Makes collectives and messages over a fabric."""
