"""Collectives on any array over MPI.

``import mpicoll`` neither initialises MPI nor imports torch: the first :class:`Communicator` does the one, and
``mpicoll.torch`` the other.
"""

from mpicoll import errors
from mpicoll.algorithms import Algorithm, register
from mpicoll.communicator import Communicator
from mpicoll.dtypes import Op
from mpicoll.launch import spawn
from mpicoll.threaded import threads

__version__ = "0.1.0"

__all__ = ["Algorithm", "Communicator", "Op", "__version__", "errors", "register", "spawn", "threads"]
