"""How many files the process may open whose watcher compares all ranks."""

from __future__ import annotations

import os
import resource

import pytest

from mpicoll.errors import LaunchError
from mpicoll.supervise.wire import listen

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [(1024, 4096, 1024), (NO_LIMIT, NO_LIMIT, NO_LIMIT), (20, 4096, 4096), (300, NO_LIMIT, NO_LIMIT), (20, 300, None)],
)
def test_limits(soft: int, hard: int, after: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit is raised only if it must be. Where that does not help, the job does not begin."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 12)
    if after is None:
        with pytest.raises(LaunchError, match=r"rank 4 may open 300 files, and needs 520: one for each of 500 ranks"):
            listen(True, 4, 500)
    else:
        listen(True, 4, 500)[0].close()
        assert limits[-1] == (after, hard)
