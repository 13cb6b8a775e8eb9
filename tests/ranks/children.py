"""What may happen to a rank: it forks, and a signal's handler ends a call midway."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


def in_child(check: Callable[[], object]) -> None:
    """``check`` passes in a forked child."""
    child = os.fork()
    if not child:
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


class Raised(Exception):
    """By a signal's handler."""


@contextmanager
def ended_midway(error: type[BaseException] = Raised, when: Callable[[], object] = lambda: True) -> Iterator[None]:
    """What is done meanwhile ends with this error, which the handler of SIGALRM raises, if it comes when it may."""

    def handler(*_: object) -> None:
        if when():
            raise error

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(error):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
