"""The ways of calling collectives that are compared.

A new one is a class in ``on_arrays`` or ``on_torch``, and a line in :data:`BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mpicoll.bench.memory import Buffers
    from mpicoll.bench.session import Session

BACKENDS = {
    "mpicoll": "on_arrays:ArrayLevel",
    "mpicoll:shared": "on_arrays:open_shared",
    "mpi": "on_arrays:Bare",
    "mpicoll.torch": "on_torch:open_mpicoll_torch",
    "torch": "on_torch:open_torch",
    "gloo": "on_torch:open_gloo",
    "nccl": "on_torch:open_nccl",
}
"""By the name that ``--backends`` takes: the file, and what opens the backend there."""


class Unavailable(Exception):
    """A backend, or one case of it, cannot run here. The message says why, in words for the table."""


class Backend(Protocol):
    """One way of calling collectives."""

    new: Callable[[int], Any] | None
    """Makes host memory of so many bytes for this backend's buffers. None where it uses those of the other backends."""

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        """The call of ``buffers.case`` on these buffers. It has nothing left to look up. Raises Unavailable."""

    def route(self) -> str:
        """What has carried out the last call, as far as the backend knows."""

    def close(self) -> None:
        """Free what the backend holds."""


def open_backend(line: str, session: Session) -> Backend:
    """The backend for a line of the table, ``name`` or ``name:algorithm``. Collective. Raises Unavailable."""
    name, _, algorithm = (line, "", "") if line in BACKENDS else line.partition(":")
    file, _, function = BACKENDS[name].partition(":")
    opens: Callable[..., Backend] = getattr(import_module(f"mpicoll.bench.{file}"), function)
    return opens(session, algorithm) if algorithm else opens(session)
