"""Barriers: the collective one, and one that says which ranks did not come."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import numpy as np

from mpicoll.communicator.messages import Request
from mpicoll.errors import TimeoutError
from mpicoll.torch.arguments import checked_timeout
from mpicoll.torch.group import ProcessGroup, member
from mpicoll.torch.work import Work

__all__ = ["barrier", "monitored_barrier"]

_CALL, _ANSWER = 32765, 32766
"""Tags of a monitored barrier's messages: MPI guarantees no tag above 32767, and programs count from 0."""
_COME, _DONE = range(2)
"""What rank 0 tells: [number of the barrier, one of these, the missing ranks, -1 ...]."""


_PAUSE = 1e-4
"""Seconds between looks: a rank that waits for long leaves its core to others."""


def barrier(
    group: Any = None,
    async_op: bool = False,
    device_ids: Any = None,
    timeout: timedelta | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Returns when all ranks of the group have called it. ``device_ids`` makes no difference here; for a bound on
    the wait use :func:`monitored_barrier`."""
    g = member(group, "barrier")
    if g is None:
        return None
    plan = g.comm.plan("barrier", algorithm=algorithm)
    return g.do("barrier", lambda: g.comm.carry_out(plan, "barrier"), [], async_op)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier that raises TimeoutError after ``timeout`` (the group's, if None), naming the ranks that did not come.

    The group's rank 0 waits for all and names all that are missing, whatever ``wait_all_ranks`` says; it tells those
    that came, which raise as well. With a ``timeout`` of zero rank 0 waits for nobody, and the others wait for it as
    long as the group's timeout, as they do over gloo.
    """
    g = member(group, "monitored_barrier")
    if g is None:
        return
    checked_timeout("monitored_barrier", timeout, or_zero=True)
    limit = g.timeout if timeout is None or (not timeout and g.rank() > 0) else timeout
    missing = (_lead if g.rank() == 0 else _follow)(g, limit.total_seconds())
    if missing:
        names = ", ".join(str(g.global_rank(r)) for r in missing)
        raise TimeoutError(f"monitored_barrier: after {limit}, these ranks did not come: {names}")


def _lead(g: ProcessGroup, limit: float) -> list[int]:
    """Call everybody and wait for the answers; tell those who came whether all did. Returns the missing ranks.

    The call carries a number, and so does the answer: one to an earlier barrier, which failed without it, is not
    taken for one to this.
    """
    deadline = monotonic() + limit
    g.barriers += 1
    others = set(range(1, g.size()))
    for r in others:
        g.comm.isend(_word(g, _COME, []), r, _CALL)  # not waited for: it may never come
    missing = set(others)
    inbox = {r: np.zeros(1, np.int64) for r in others}
    waiting = {r: g.comm.irecv(inbox[r], r, _ANSWER) for r in others}
    while missing and monotonic() < deadline:
        for r in sorted(missing):
            if waiting[r].test():
                if inbox[r][0] == g.barriers:
                    missing.discard(r)
                else:
                    waiting[r] = g.comm.irecv(inbox[r], r, _ANSWER)
        sleep(_PAUSE)
    for r in missing:
        waiting[r].cancel()
    for r in others - missing:
        g.comm.send(_word(g, _DONE, sorted(missing)), r, _CALL)
    return sorted(missing)


def _word(g: ProcessGroup, what: int, missing: list[int]) -> np.ndarray[Any, Any]:
    return np.array([g.barriers, what, *missing, *[-1] * (g.size() - len(missing))], np.int64)


def _follow(g: ProcessGroup, limit: float) -> list[int]:
    """Answer rank 0's calls until it says how it went. Returns the missing ranks."""
    word = np.empty(g.size() + 2, np.int64)
    deadline = monotonic() + limit
    while True:
        request = g.comm.irecv(word, 0, _CALL)
        if not _within(request, deadline) and request.cancel():
            return [0]
        if word[1] != _COME:
            return [int(r) for r in word[2:] if r >= 0]
        g.comm.send(word[:1], 0, _ANSWER)
        deadline = monotonic() + limit + 1.0  # rank 0 may wait this long for others, from now on


def _within(request: Request, deadline: float) -> bool:
    while not request.test():
        if monotonic() > deadline:
            return False
        sleep(_PAUSE)
    return True
