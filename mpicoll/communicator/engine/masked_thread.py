"""How another thread than the main one waits for messages: it looks again and again. At the end of the program, the
main thread masks it from MPI: MPI_Finalize crashes while a thread is within."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import get_ident
from weakref import WeakValueDictionary

from mpicoll.machine.backoff import Backoff

MAIN = threading.main_thread().ident  # the main thread's number
_LOOKS = 1e-4
_over = False  # whether the program has come to its end


class _MaskedBackoff(Backoff):
    """How another thread than the main one waits."""

    outside = False  # whether the thread is outside MPI, and stays there if the program has come to its end

    def wait(self) -> bool:
        self.outside = True
        lasts = super().wait()
        self.outside = False  # first: who holds all threads reads this after it has said that it is over
        if _over:
            self.outside = True
            threading.Event().wait()
        return lasts


_all: WeakValueDictionary[int, _MaskedBackoff] = WeakValueDictionary()


def backoff(seconds: float, meanwhile: Callable[[], object] | None = None) -> Backoff:
    """How this thread waits."""
    if get_ident() == MAIN:
        return Backoff(seconds, meanwhile)
    made = _all[get_ident()] = _MaskedBackoff(seconds, meanwhile)
    return made


def hold(seconds: float) -> None:
    """Let no thread that waits call MPI any more. A message that is complete may keep one there for so many seconds."""
    global _over
    _over = True
    deadline = time.monotonic() + seconds
    for known in _all.valuerefs():
        while (each := known()) is not None and not each.outside and time.monotonic() < deadline:
            del each
            time.sleep(_LOOKS)
