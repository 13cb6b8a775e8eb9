"""How ranks tell each other a number where one of them may never come."""

from __future__ import annotations

from functools import partial

import numpy as np
from mpi4py import MPI

from mpicoll.machine.backoff import Backoff

_SPINS = 200  # looks at the numbers before a rank lets others have its core
_NUMBER, _GAVE_UP = 0, 1  # tags: of the numbers, and of a rank's message that it waits no longer


class BoundedAllgather:
    """Persistent requests for one number to, and one from, each other rank. Its communicator has no other messages."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self._rank = comm, comm.rank
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._mine, self._all = np.zeros(1, np.int64), np.zeros(comm.size, np.int64)
        self._receives = [comm.Recv_init(self._all[rank : rank + 1], rank, _NUMBER) for rank in self._others]
        self._sends = [comm.Send_init(self._mine, rank, _NUMBER) for rank in self._others]
        self._requests: list[MPI.Request] = [*self._receives, *self._sends]
        self._start = partial(MPI.Prequest.Startall, [*self._receives, *self._sends])
        self._somebody_gave_up = partial(comm.Iprobe, MPI.ANY_SOURCE, _GAVE_UP)

    def numbers(self, number: int, seconds: float) -> list[int | None]:
        """Every rank's number. None stands for a rank whose number did not come in time, and for this rank itself if
        others have given up waiting for it. After such an end, no more numbers can be gathered."""
        self._mine[0] = self._all[self._rank] = number
        self._start()
        test, requests = MPI.Request.Testall, self._requests
        if not any(test(requests) for _ in range(_SPINS)):
            backoff = Backoff(seconds)
            while not test(requests):
                if not backoff.wait() and (missing := self._missing()):
                    return self._given_up(missing)
        found: list[int | None] = [*self._all.tolist()]
        probe = self._somebody_gave_up
        if probe() or probe() or probe():  # MPICH takes in one message at a look, and says what was there before it
            found[self._rank] = None
        return found

    def _missing(self) -> list[int]:
        """Whose numbers have not come, not even by now. Looks at each one, which a look at all does not tell."""
        return [rank for rank, receive in zip(self._others, self._receives, strict=True) if not receive.Test()]

    def _given_up(self, missing: list[int]) -> list[int | None]:
        """Tell all ranks that this one waits no longer."""
        found: list[int | None] = [*self._all.tolist()]
        for rank, receive in zip(self._others, self._receives, strict=True):
            if rank in missing:
                receive.Cancel()
                found[rank] = None
            self.comm.Isend([None, 0, MPI.BYTE], rank, _GAVE_UP).Free()
        return found

    def free(self) -> None:
        """Give MPI's requests back, if all are complete: a message that nobody received cannot be taken back."""
        if all(request.Test() for request in self._requests):
            for request in self._requests:
                request.Free()
            self.comm.Free()
