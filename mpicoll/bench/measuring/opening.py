"""Which backends run here: opens them, and says why others do not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

from mpicoll.bench.backends import Backend, Unavailable, open_backend
from mpicoll.bench.options import Options
from mpicoll.bench.report.rows import Note
from mpicoll.bench.session import Session
from mpicoll.errors import ArgumentError, MpicollError

T = TypeVar("T")


def lines_of(options: Options, session: Session) -> list[str]:
    """The lines of the table: the backends. If algorithms are named, each of them is a line instead of ``mpicoll``."""
    names = list(options.backends) or ["mpicoll", "mpi"]
    if not options.backends and find_spec("torch") is not None:
        names += ["gloo", "nccl"] if session.on_gpu else ["gloo"]
    return [
        line
        for name in names
        for line in ([f"mpicoll:{a}" for a in options.algorithms] or [name] if name == "mpicoll" else [name])
    ]


def open_backends(lines: Sequence[str], session: Session) -> tuple[dict[str, Backend], list[Note]]:
    """The backends that run here, and a note for each that does not."""
    backends, notes = {}, []
    for line in lines:
        opened, reason = agreed(session, partial(open_backend, line, session))
        if opened is None:
            notes.append(Note(line, reason))
        else:
            backends[line] = opened
    return backends, notes


def agreed(session: Session, attempt: Callable[[], T]) -> tuple[T | None, str]:
    """The attempt's result if it succeeded on every rank; otherwise None, and the reason of the first rank that failed.

    Collective.
    """
    found, reason = None, ""
    try:
        found = attempt()
    except MpicollError as e:
        if isinstance(e, ArgumentError) and e.operation == "mpicoll":
            raise  # a setting of the user's is wrong, as MPICOLL_ALGORITHM: then nothing is to be measured
        reason = str(e).splitlines()[0]
    except Unavailable as e:
        reason = str(e)
    except Exception as e:  # what a library itself raises, as gloo does for an operation that it does not have
        reason = _in_a_line(e)
    reasons = [r for r in session.world.allgather(reason) if r]
    return (None, reasons[0]) if reasons else (found, "")


def _in_a_line(e: Exception) -> str:
    """An exception's message without paths. NCCL's own words come after "Last error:"."""
    lines = (str(e).strip() or type(e).__name__).partition("Last error:")
    text = (lines[2].strip() or lines[0]).splitlines()[0]
    return re.sub(r"(/[\w.+-]+)+/", "", text)[:160]
