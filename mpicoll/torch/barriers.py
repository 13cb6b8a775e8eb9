"""The barrier that names the ranks that did not come in time."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import numpy as np

from mpicoll.errors import TimeoutError
from mpicoll.torch.caller import caller_of, checked_timeout
from mpicoll.torch.group import GivenGroup, ProcessGroup

# It uses messages of its own:
# - Rank 0 calls every other rank. The message is [number of the barrier, _CALL, -1 ...].
# - A rank that has come answers with the number. An answer to an earlier barrier, which failed without that rank,
#   carries an earlier number, and rank 0 does not take it for an answer to this one.
# - Rank 0 tells each rank that answered how it ended. The message is [number, _END, the missing ranks, -1 ...].
_CALL, _END = range(2)

_PAUSE = 1e-4
"""Seconds between two of rank 0's looks at the answers. A rank that waits for long leaves its core to others."""


def monitored_barrier(group: GivenGroup = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier that raises TimeoutError after ``timeout`` and names the ranks that did not come.

    Rank 0 of the group waits for all ranks and names all that are missing: it always does what torch does if
    ``wait_all_ranks``. The ranks that came raise the same error. None means the group's timeout."""
    caller = caller_of("monitored_barrier", group)
    if caller is None:
        return
    checked_timeout("monitored_barrier", timeout)
    g = caller.group
    limit = timeout or g.timeout
    missing = (_lead if g.rank() == 0 else _follow)(g, limit.total_seconds())
    if missing:
        names = ", ".join(str(g.global_rank(r)) for r in missing)
        raise TimeoutError(f"monitored_barrier: after {limit}, these ranks did not come: {names}")


def _lead(g: ProcessGroup, limit: float) -> list[int]:
    """Rank 0's part. Returns the missing ranks."""
    deadline = monotonic() + limit
    to_others, to_rank_0 = g.barrier_tags
    g.barriers += 1
    others = set(range(1, g.size()))
    for r in others:
        g.comm.isend(_message(g, _CALL, []), r, to_others)  # not waited for: the rank may never come
    missing = set(others)
    answers = {r: np.zeros(1, np.int64) for r in others}
    requests = {r: g.comm.irecv(answers[r], r, to_rank_0) for r in others}
    while missing and monotonic() < deadline:
        for r in sorted(missing):
            if requests[r].test():
                if answers[r][0] == g.barriers:
                    missing.discard(r)
                else:
                    requests[r] = g.comm.irecv(answers[r], r, to_rank_0)
        sleep(_PAUSE)
    for r in missing:
        requests[r].cancel()
    for r in others - missing:
        g.comm.send(_message(g, _END, sorted(missing)), r, to_others)
    return sorted(missing)


def _message(g: ProcessGroup, what: int, missing: list[int]) -> np.ndarray[Any, Any]:
    return np.array([g.barriers, what, *missing, *[-1] * (g.size() - len(missing))], np.int64)


def _follow(g: ProcessGroup, limit: float) -> list[int]:
    """The part of every other rank: answer rank 0's calls until it tells the end. Returns the missing ranks."""
    message = np.empty(g.size() + 2, np.int64)
    deadline = monotonic() + limit
    to_others, to_rank_0 = g.barrier_tags
    while True:
        request = g.comm.irecv(message, 0, to_others)
        if not request.ends_within(deadline - monotonic()) and request.cancel():
            return [0]
        if message[1] == _END:
            return [int(r) for r in message[2:] if r >= 0]
        g.comm.send(message[:1], 0, to_rank_0)
        deadline = monotonic() + limit + 1.0  # from now on rank 0 may wait this long for others
