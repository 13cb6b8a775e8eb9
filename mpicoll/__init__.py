"""Collectives on any array over MPI.

``import mpicoll`` neither initialises MPI nor imports torch: the first :class:`Communicator` does the one, and
``mpicoll.torch`` the other.
"""

from mpicoll import errors
from mpicoll.algorithms import Algorithm
from mpicoll.analysis.proof.registration import register
from mpicoll.arrays.dtypes import Op
from mpicoll.communicator.communicator import Communicator
from mpicoll.communicator.threaded import threads
from mpicoll.launch.launcher import spawn

__version__ = "0.1.0"

__all__ = ["Algorithm", "Communicator", "Op", "__version__", "errors", "register", "spawn", "threads"]


def __dir__() -> list[str]:
    """What programs use: the rooms behind it are nobody's business."""
    return __all__
