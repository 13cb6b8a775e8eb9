"""Collectives on any array over MPI.

``import mpicoll`` neither initialises MPI nor imports torch: the first :class:`Communicator` does the one, and
``mpicoll.torch`` the other."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpicoll import errors

if TYPE_CHECKING:
    from mpicoll.algorithms import Algorithm
    from mpicoll.analysis.drawing.draw import draw
    from mpicoll.analysis.proof.cases import register
    from mpicoll.arrays.dtypes import Op
    from mpicoll.communicator.communicator import Communicator
    from mpicoll.communicator.threaded import threads
    from mpicoll.jobs.spawn import spawn
    from mpicoll.supervise.watch import record
    from mpicoll.watching.start import watch

__version__ = "0.1.0"

__all__ = [
    "Algorithm", "Communicator", "Op", "__version__", "draw", "errors", "record", "register", "spawn", "threads",
    "watch",
]  # fmt: skip

_HOMES = {
    "Algorithm": "mpicoll.algorithms",
    "Communicator": "mpicoll.communicator.communicator",
    "Op": "mpicoll.arrays.dtypes",
    "draw": "mpicoll.analysis.drawing.draw",
    "load_ipython_extension": "mpicoll.notebook",
    "record": "mpicoll.supervise.watch",
    "register": "mpicoll.analysis.proof.cases",
    "spawn": "mpicoll.jobs.spawn",
    "threads": "mpicoll.communicator.threaded",
    "watch": "mpicoll.watching.start",
}


def __getattr__(name: str) -> Any:
    """Import what a program uses when it does. The command line and the launcher need no NumPy, and begin at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mpicoll' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    """What programs use: the rooms behind it are nobody's business."""
    return __all__
