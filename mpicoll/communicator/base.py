"""What all parts of a Communicator have: the engine that makes its calls, and what programs read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpicoll.communicator.engine.engine import Engine
from mpicoll.node.loaded import kernel

if TYPE_CHECKING:
    _Base = object
else:
    _Base = object if kernel is None else kernel.Base


class CommunicatorBase(_Base):
    """An engine, behind what programs see of it."""

    rank: int
    """This process's rank in the communicator, 0 to size - 1."""
    size: int
    """The number of ranks in the communicator."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._calls = engine, engine.calls
        self.rank, self.size = engine.rank, engine.size

    @property
    def timeout(self) -> float:
        """The seconds that a collective, or a wait for a message, may take. It can be set."""
        return self._engine.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._engine.timeout = seconds

    @property
    def closed(self) -> str:
        """Why the communicator cannot be used any more. Empty while it can."""
        return self._engine.closed

    @property
    def lost(self) -> bool:
        """Whether it is closed because ranks were lost: those that are left can ``shrink`` it."""
        return self._engine.lost

    @property
    def last_route(self) -> str:
        """What has carried out the last call, as in ``native``, ``ring`` or ``staged:ring``. Empty where no call was
        made, and where a call has one way only, as those of objects."""
        made = self._engine.recorder.calls()
        return made[-1].record.route if made else ""


def engine_of(comm: CommunicatorBase) -> Engine:
    """What makes the calls of this communicator, for those who make calls of another kind with it."""
    return comm._engine
