"""The end of a communicator whose ranks were lost, or cannot go on with it: an error on every rank that is left."""

from __future__ import annotations

import time
import weakref

from mpicoll.errors import MpicollError, RankLost
from mpicoll.fabrics.fabric import ElasticFabric

_SECONDS_TO_KNOW = 5.0
"""What it may take until a rank knows why another one has cut their communicator."""
_PAUSE = 0.01


class Cut:
    """Cuts a communicator from the watcher's thread, and says why in the thread whose call ends by that."""

    def __init__(self, fabric: ElasticFabric) -> None:
        self._fabric, self._in_job = weakref.ref(fabric), fabric.in_world()  # a program may drop a communicator
        self._error: MpicollError | None = None

    def look(self) -> list[int]:
        """See whether ranks of the communicator are lost, and cut it then. Returns which."""
        fabric = self._fabric()
        lost = fabric.lost() if fabric is not None else []
        if lost:
            self._cut()
        return lost

    def fail(self, error: MpicollError) -> None:
        """The ranks cannot go on together, for this reason."""
        self._error = self._error or error
        self._cut()

    def _cut(self) -> None:
        if (fabric := self._fabric()) is not None:
            fabric.cut()

    def why(self, operation: str, e: BaseException) -> MpicollError | None:
        """The error of a call that the fabric has ended with ``e``; None if it has nothing to do with this."""
        fabric = self._fabric()
        if fabric is None or not fabric.is_cut(e):
            return None
        fabric.cut()  # other ranks may be in calls that do not need the lost one
        deadline = time.monotonic() + _SECONDS_TO_KNOW
        while not (self._error or fabric.lost()) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return self._error or self.loss(operation)

    def loss(self, operation: str) -> RankLost:
        """The error of a call after ranks were lost."""
        fabric = self._fabric()
        return RankLost(operation, fabric.lost() if fabric is not None else (), self._in_job)
