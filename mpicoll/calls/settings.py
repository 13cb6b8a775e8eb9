"""What rank 0 tells all ranks of a new communicator: their environments may differ, and their choices must not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf

from mpicoll.errors import ArgumentError

CHECKS = ("off", "watch", "full")
DEFAULT_TIMEOUT = 1800.0  # seconds, as in torch


@dataclass(frozen=True, slots=True)
class Settings:
    """The same on all ranks of a communicator, as long as it lives.

    ``preferred`` is the text of MPICOLL_ALGORITHM. ``check`` is one of ``CHECKS``. ``timeout`` is in seconds.
    ``dump`` and ``trace`` are the texts of MPICOLL_DUMP and MPICOLL_TRACE. ``reproducible`` says whether reductions are
    made in the order of the ranks."""

    preferred: str = ""
    check: str = "watch"
    timeout: float = DEFAULT_TIMEOUT
    dump: str = ""
    trace: str = ""
    reproducible: bool = False

    @classmethod
    def of_environment(cls) -> Settings:
        """The rules that this process's environment sets. Raises ArgumentError, which names the wrong variable."""
        return cls(
            preferred=os.environ.get("MPICOLL_ALGORITHM", ""),
            check=check(),
            timeout=timeout(),
            dump=os.environ.get("MPICOLL_DUMP", ""),
            trace=_trace(),
            reproducible=_one_of("REPRODUCIBLE", "0", "1") == "1",
        )


def check() -> str:
    """MPICOLL_CHECK as this process has it. TORCH_DISTRIBUTED_DEBUG=DETAIL asks torch's backends for the same."""
    detail = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    given = os.environ.get("MPICOLL_CHECK") or ("full" if detail else "watch")
    return checked_check(given, "mpicoll", "MPICOLL_CHECK")


def checked_check(given: object, operation: str, argument: str) -> str:
    if not isinstance(given, str) or given not in CHECKS:
        raise ArgumentError(operation, argument, ", ".join(CHECKS), repr(given))
    return given


def _one_of(name: str, *known: str) -> str:
    """The variable of this name, as this process has it. Nothing is right, too."""
    given = os.environ.get(f"MPICOLL_{name}", "")
    if given not in ("", *known):
        raise ArgumentError("mpicoll", f"MPICOLL_{name}", f"{' or '.join(known)}, or nothing", repr(given))
    return given


_SECONDS = "seconds, more than 0"


def timeout() -> float:
    """MPICOLL_TIMEOUT as this process has it, in seconds."""
    given = os.environ.get("MPICOLL_TIMEOUT")
    if not given:
        return DEFAULT_TIMEOUT
    try:
        return checked_timeout(float(given), "mpicoll", "MPICOLL_TIMEOUT")
    except ValueError:  # no number, or not a right one; the error shows the text
        raise ArgumentError("mpicoll", "MPICOLL_TIMEOUT", _SECONDS, repr(given)) from None


def limit() -> float:
    """Seconds in which ranks must come to where they make a communicator of the world, as this process has it."""
    try:
        return inf if check() == "off" else timeout()
    except ArgumentError:  # rank 0's environment counts, and there it is refused
        return inf


def shares_buckets() -> bool:
    """MPICOLL_SHARE as this process has it: whether DDP's buckets move to memory that ranks share."""
    return not _one_of("SHARE", "off")


def overlaps() -> bool | None:
    """MPICOLL_DDP_OVERLAP as this process has it: whether DDP's backward pass goes on while all-reduces are under way.
    None if it is for mpicoll to say."""
    given = _one_of("DDP_OVERLAP", "0", "1")
    return given == "1" if given else None


def _trace() -> str:
    """MPICOLL_TRACE as this process has it. The threads that watch over calls gather the trace."""
    given = os.environ.get("MPICOLL_TRACE", "")
    if given and check() == "off":
        raise ArgumentError("mpicoll", "MPICOLL_TRACE", "nothing, because MPICOLL_CHECK is off", repr(given))
    return given


def checked_timeout(given: object, operation: str, argument: str) -> float:
    """``given`` as seconds, if it is a positive number of them. A text or a bool is none."""
    try:
        seconds = 0.0 if isinstance(given, (str, bytes, bool)) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ArgumentError(operation, argument, _SECONDS, repr(given))
    return seconds
