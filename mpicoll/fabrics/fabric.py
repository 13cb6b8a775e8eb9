"""What connects the ranks of a communicator: an MPI library, or memory that threads share.

A :class:`Fabric` is all that a Communicator needs of it. What reaches a fabric was checked before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.rules import Rules

__all__ = ["Fabric", "Transfer"]


class Transfer(ABC):
    """A message under way, of one buffer."""

    source: int | None = None
    """The rank that a received message came from, once it is complete."""
    arrived: int | None = None
    """Elements that arrived, once it is complete; None if part of an element did."""

    @abstractmethod
    def wait(self) -> None:
        """Return when it is complete."""

    @abstractmethod
    def test(self) -> bool:
        """Whether it is complete."""

    @abstractmethod
    def cancel(self) -> bool:
        """Give up receiving; False if the message came after all."""


class Fabric(ABC):
    """The ranks of one communicator, seen from one of them. Collectives and messages never meet each other."""

    rank: int
    size: int
    library: str
    """The MPI library's name, empty where there is none."""
    one_node: bool
    """Whether all ranks are on one node."""
    shares: bool
    """Whether long messages go through memory that all ranks share; if not ``settled``, as far as anybody knows."""
    settled: bool
    """Whether ``shares`` is known for good."""
    rules: Rules
    """By what algorithms are chosen, equal on all ranks."""
    failure: type[Exception] | tuple[()]
    """What is raised when the fabric itself reports an error."""
    most_tag: int
    any_thread: bool
    """Whether several threads of this rank may use it at once."""
    address: Callable[[Any], int]
    """Where a NumPy array's memory begins."""

    @abstractmethod
    def bind(self, call: Call, choice: Choice, workspace: Workspace) -> Plan:
        """The plan of a call whose buffers are ``usable``, carried out as was chosen."""

    @abstractmethod
    def is_long(self, call: Call) -> bool:
        """Whether the call may have long messages: all its ranks find the same."""

    @abstractmethod
    def settle(self) -> None:
        """Get the memory to share, if there is any: ``shares`` is known for good then. Collective."""

    @abstractmethod
    def usable(self, b: Buffer) -> bool:
        """Whether the fabric can read and write this memory as it lies."""

    @abstractmethod
    def start_send(self, b: Buffer, dest: int, tag: int) -> Transfer:
        """Start to send."""

    @abstractmethod
    def start_recv(self, b: Buffer, source: int | None, tag: int) -> Transfer:
        """Start to receive, from any rank if ``source`` is None."""

    @abstractmethod
    def node(self) -> Fabric:
        """The ranks of this one's node. Collective, as all that makes a fabric is."""

    @abstractmethod
    def split(self, color: int | None, key: int) -> Fabric | None:
        """The ranks that give the same ``color``, in order of ``key``; None gives None."""

    @abstractmethod
    def subset(self, ranks: Sequence[int]) -> Fabric:
        """These ranks, this one among them; collective among them alone."""

    @abstractmethod
    def prepare_to_tell(self) -> None:
        """Make ``tell`` possible. Collective."""

    @abstractmethod
    def tell(self, word: int, seconds: float) -> list[int | None]:
        """Tell all ranks a number of 63 bits, and return all ranks' numbers, in rank order.

        None stands for a rank whose number did not come within these seconds."""

    @abstractmethod
    def free(self) -> None:
        """Give it back."""

    # -- objects, pickled ---------------------------------------------------------------------------------------------

    @abstractmethod
    def bcast(self, obj: Any, root: int) -> Any:
        """The root's object."""

    @abstractmethod
    def gather(self, obj: Any, root: int) -> list[Any] | None:
        """All ranks' objects, at the root."""

    @abstractmethod
    def allgather(self, obj: Any) -> list[Any]:
        """All ranks' objects."""

    @abstractmethod
    def scatter(self, objs: Sequence[Any] | None, root: int) -> Any:
        """This rank's of the root's objects."""

    @abstractmethod
    def alltoall(self, objs: Sequence[Any]) -> list[Any]:
        """The objects that all ranks have for this one."""

    @abstractmethod
    def send(self, obj: Any, dest: int, tag: int) -> None:
        """Send an object."""

    @abstractmethod
    def recv(self, source: int | None, tag: int) -> Any:
        """Receive an object."""
